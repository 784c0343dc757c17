"""`pip-flower deploy`: prepare a deployment, admit its nodes, or try one out on this machine."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pip_flower.commands.choices import choosing_parser, listed, selection_of
from pip_flower.commands.running import run_one, show_tables
from pip_flower.deployment.bundles import node_name, write_bundles
from pip_flower.deployment.connection import register_all
from pip_flower.deployment.local import local_deployment
from pip_flower.deployment.plan import SERVER, Plan


def add_parser(commands: Any) -> None:
    """Add `deploy init`, `deploy register` and `deploy local`."""
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
    init.set_defaults(command=_init)

    register = actions.add_parser("register", help="admit the nodes in a server's bundle")
    register.add_argument("bundle", metavar="SERVER_BUNDLE")
    register.set_defaults(command=_register)

    local = actions.add_parser(
        "local", parents=[choosing_parser()], help="a SuperLink and nodes on this machine, and a run on them"
    )
    local.add_argument("--nodes", type=int, default=3, help="how many; all take part in every round")
    local.add_argument("--tls", action="store_true", help="with certificates and authenticated nodes")
    local.add_argument("--method", default="", help="see `pip-flower methods`")
    local.add_argument("--out-dir", default="runs", help="parent of the run directory")
    local.set_defaults(command=_local)


def _init(options: argparse.Namespace, console: Console) -> int:
    directory = Path(options.directory).expanduser().resolve()
    plan = Plan(options.nodes, tuple(listed(options.server_host)) or ("",), fleet_port=options.fleet_port)
    write_bundles(directory, plan)
    names = [SERVER, *(node_name(node) for node in range(plan.nodes))]
    console.out(f"Copy each directory to its host, and nowhere else ({directory}):", highlight=False)
    for name in names:
        where = f"to {plan.hosts[0]}" if name == SERVER else f"to the host of node {name.split('-')[1]}"
        console.out(f"  {name + '/':12} {where}, as /etc/pip-flower", highlight=False)
    console.out("  authority/   to no host: its key signs the server's certificate; keep it safe")
    console.out(f"Nodes dial {plan.fleet_address}: open that port on the server. See docs/deployment.md.")
    return 0


def _register(options: argparse.Namespace, console: Console) -> int:
    for name, new in register_all(Path(options.bundle).expanduser().resolve()).items():
        console.out(f"{name}: {'registered' if new else 'was registered before'}", highlight=False)
    return 0


def _local(options: argparse.Namespace, console: Console) -> int:
    plan = Plan(options.nodes, ("127.0.0.1",), tls=options.tls)
    chosen = selection_of(options)
    everybody = f"federation.clients={plan.nodes} federation.clients_per_round={plan.nodes}"
    # What is given explicitly wins, as it comes last.
    selection = replace(
        chosen, overrides=f"{everybody} federation.wait_seconds=120 {chosen.overrides}".strip()
    )
    out_dir = Path(options.out_dir).expanduser().resolve()
    console.print(f"starting a SuperLink and {plan.nodes} nodes", highlight=False)
    with local_deployment(plan) as deployment, deployment.runner() as runner:
        result = run_one(runner, selection, out_dir, console)
    show_tables([result], console)
    console.print(f"results: {result.path}", highlight=False)
    return 0
