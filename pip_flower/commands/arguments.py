"""What can be typed after `pip-flower`. Nothing heavy is imported before a command is known, so that help and
refusals come at once."""

import argparse
import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

from pip_flower.commands.choices import choosing_parser
from pip_flower.config.files import available
from pip_flower.deployment.plan import Plan

_OPTION = re.compile(r"(?<!\w)--?[A-Za-z][\w-]*")
_RETRIES = 2


class _Parser(argparse.ArgumentParser):
    """Refuses what a command does not know under that command's own usage, and names the nearest option."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but a command leaves nothing unknown to those above it."""
        is_command = self.get_default("command") is not None
        if is_command:
            self._refuse_unknown(args)
        options, unexpected = super().parse_known_args(args, namespace)
        if is_command and unexpected:
            self.error(f"unexpected: {' '.join(unexpected)}")
        return options, unexpected

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = _OPTION.findall(self.format_usage())
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if _OPTION.fullmatch(name) and not any(option.startswith(name) for option in known):
                close = difflib.get_close_matches(name, known, n=1)
                self.error(f"there is no option {name}" + (f"; did you mean {close[0]}?" if close else ""))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command given; `command` is the module of `pip_flower.commands` and the function,
    `arguments` what was typed."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pip-flower", description="The `pip-flower` command.")
    commands: Any = parser.add_subparsers(required=True, metavar="command")
    _add_experiments(commands)
    _add_report(commands)
    _add_configuration(commands)
    _add_data(commands)
    parity = commands.add_parser("parity", help="compare with numbers of the authors' released code")
    parity.add_argument("fixtures", metavar="DIR", help="directory of fixture files (.npz)")
    _performs(parity, "parity:parity")
    _add_deploy(commands)
    doctor = commands.add_parser("doctor", parents=[choosing_parser(), _one()], help="check this machine")
    doctor.add_argument(
        "--bundle", default="", metavar="DIR", help="also this host's bundle of `deploy init`"
    )
    _performs(doctor, "doctor:doctor")
    return parser


def _performs(parser: argparse.ArgumentParser, command: str) -> None:
    parser.set_defaults(command=command)


def _one() -> argparse.ArgumentParser:
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("--method", default="", help="see `pip-flower methods`")
    return one


def _written() -> argparse.ArgumentParser:
    written = argparse.ArgumentParser(add_help=False)
    written.add_argument("--out-dir", default="runs", help="parent of the run directory")
    return written


def _launching() -> argparse.ArgumentParser:
    launching = argparse.ArgumentParser(add_help=False, parents=[_written()])
    launching.add_argument(
        "--retries",
        type=_count,
        default=_RETRIES,
        metavar="N",
        help=f"how often a run goes on by itself after a failure that is not the app's (default: {_RETRIES})",
    )
    launching.add_argument("--debug", action="store_true", help="show all that Flower says")
    return launching


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _add_experiments(commands: Any) -> None:
    run = commands.add_parser(
        "run", parents=[choosing_parser(), _one(), _launching()], help="run one experiment"
    )
    run.add_argument("--resume", default="", metavar="RUN_DIR", help="go on with an interrupted run")
    run.add_argument(
        "--deployment",
        default="",
        metavar="SERVER_BUNDLE",
        help="run on the nodes of this server's SuperLink",
    )
    run.add_argument(
        "--in-process", action="store_true", help="without Flower's daemons, clients one after the other"
    )
    _performs(run, "run:run")
    suite = commands.add_parser(
        "suite", parents=[choosing_parser(), _launching()], help="compare methods, seeds"
    )
    suite.add_argument("--methods", required=True, metavar="A,B", help="methods to compare")
    suite.add_argument("--seeds", default="", metavar="1,2", help="seeds; default: the file's")
    suite.add_argument(
        "--resume",
        action="store_true",
        help="with the same arguments as before: finish what is missing, skip what is done",
    )
    _performs(suite, "suite:suite")
    _add_choose(commands)


def _add_choose(commands: Any) -> None:
    choose = commands.add_parser(
        "choose",
        parents=[choosing_parser(), _written()],
        help="choose settings by accuracy on validation images",
    )
    choose.add_argument(
        "values",
        nargs="+",
        metavar="KEY=A,B,C",
        help="values to choose from; of several keys, all combinations",
    )
    choose.add_argument("--methods", required=True, metavar="A,B", help="each gets a choice of its own")
    choose.add_argument("--seeds", default="", metavar="1,2", help="scores are means over them")
    choose.add_argument(
        "--fraction", type=float, default=0.2, help="of each class's training images that validate"
    )
    choose.add_argument("--by", choices=("average", "last"), default="average", help="Avg, or A_T")
    choose.add_argument("--output", default="", metavar="DIR", help="go on with the choice that is in there")
    choose.add_argument("--jobs", type=int, default=1, help="runs at a time, a process each")
    _performs(choose, "choose:choose")


def _add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="table and picture of finished runs")
    report.add_argument("runs", nargs="+", metavar="RUN_DIR")
    report.add_argument("--output", default="report", help="directory for picture and metrics")
    _performs(report, "report:report")


def _add_configuration(commands: Any) -> None:
    config = commands.add_parser("config", help="the configuration")
    shown = config.add_subparsers(required=True, metavar="what")
    show = shown.add_parser("show", parents=[choosing_parser(), _one()], help="check, resolve and print it")
    _performs(show, "configuration:show")
    methods = commands.add_parser("methods", help="list what --method can be")
    methods.add_argument("--names", action="store_true", help="only the names")
    _performs(methods, "configuration:methods")


def _add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="prepare and look at data sets")
    actions = data.add_subparsers(required=True, metavar="what")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument(
        "name", choices=available("dataset"), help="a data set of conf/dataset", metavar="NAME"
    )
    named.add_argument("--data-dir", default="", help="its file, archive or directory")
    named.add_argument("--overrides", default="", metavar='"a.b=1 c.d=x"', help="change keys")
    named.set_defaults(experiment="", dataset="", seed="")

    prepare = actions.add_parser("prepare", parents=[named], help="download where possible, and decode")
    _performs(prepare, "data:prepare")
    info = actions.add_parser("info", parents=[named], help="classes, counts, sizes and a contact sheet")
    info.add_argument("--sheet", default="", metavar="PNG", help="where to; default: NAME-images.png")
    _performs(info, "data:info")
    partition = actions.add_parser("partition", parents=[choosing_parser()], help="who holds what")
    partition.add_argument(
        "--plot", default="", metavar="PNG", nargs="?", const="partition.png", help="draw it"
    )
    _performs(partition, "data:partition")


def _add_deploy(commands: Any) -> None:
    deploy = commands.add_parser("deploy", help="run on separate machines")
    actions = deploy.add_subparsers(required=True, metavar="what")

    init = actions.add_parser("init", help="write certificates, keys and files for every host")
    init.add_argument("directory", metavar="DIR")
    init.add_argument("--nodes", type=int, required=True, help="how many")
    init.add_argument(
        "--server-host",
        required=True,
        metavar="H[,H]",
        help="names or addresses that nodes dial the server by",
    )
    init.add_argument("--fleet-port", type=int, default=Plan.fleet_port, help="that nodes dial")
    _performs(init, "deploy:init")

    register = actions.add_parser("register", help="admit the nodes in a server's bundle")
    register.add_argument("bundle", metavar="SERVER_BUNDLE")
    _performs(register, "deploy:register")

    local = actions.add_parser(
        "local",
        parents=[choosing_parser(), _one(), _launching()],
        help="a SuperLink and nodes on this machine, and a run on them",
    )
    local.add_argument("--nodes", type=int, default=3, help="how many; all take part in every round")
    local.add_argument("--tls", action="store_true", help="with certificates and authenticated nodes")
    _performs(local, "deploy:local")
