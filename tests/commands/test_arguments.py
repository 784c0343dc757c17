import subprocess
import sys
from importlib import import_module

import pytest

from pip_flower.commands.arguments import parsed

COMMANDS = [
    ["run"],
    ["suite", "--methods", "ncm"],
    ["choose", "training.epochs=1,2", "--methods", "ncm"],
    ["report", "x"],
    ["config", "show"],
    ["methods"],
    ["data", "prepare", "digits"],
    ["data", "info", "digits"],
    ["data", "partition"],
    ["parity", "x"],
    ["deploy", "init", "x", "--nodes", "1", "--server-host", "h"],
    ["deploy", "register", "x"],
    ["deploy", "local"],
    ["doctor"],
]
HEAVY = ("torch", "flwr", "ray", "timm", "numpy", "matplotlib", "sklearn")


def test_help_and_refusals_import_nothing_heavy() -> None:
    helped = [[*command, "--help"] for command in ([], *COMMANDS, ["data"], ["config"], ["deploy"])]
    program = f"""
import sys
from pip_flower.cli import main
for arguments in {[*helped, ["run", "--metod", "x"]]!r}:
    try:
        main(arguments)
    except SystemExit:
        pass
    else:
        sys.exit(f"{{arguments}} went on")
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_there(words: list[str]) -> None:
    module, _, function = parsed(words).command.partition(":")
    assert callable(getattr(import_module(f"pip_flower.commands.{module}"), function))


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        (["run", "--metod", "ncm"], "pip-flower run ", "no option --metod; did you mean --method?"),
        (["suite", "--metods", "ncm"], "pip-flower suite ", "no option --metods; did you mean --methods?"),
        (["config", "show", "--sed=1"], "pip-flower config show ", "no option --sed; did you mean --seed?"),
        (["data", "info", "--shet", "x"], "pip-flower data info ", "no option --shet; did you mean --sheet?"),
        (["report", "x", "--zzz"], "pip-flower report ", "there is no option --zzz\n"),
        (["methods", "ncm"], "pip-flower methods ", "unexpected: ncm"),
    ],
)
def test_what_a_command_does_not_know_is_refused_under_its_own_usage(
    words: list[str], usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith(f"usage: {usage}")
    assert said in told


def test_options_may_be_shortened_and_values_may_look_like_options() -> None:
    assert parsed(["run", "--meth", "ncm"]).method == "ncm"
    assert parsed(["run", "--seed", "-7"]).seed == "-7"
    assert parsed(["run", "--overrides=--x"]).overrides == "--x"
