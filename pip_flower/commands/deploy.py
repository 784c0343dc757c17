"""`pip-flower deploy`: prepare a deployment, admit its nodes, or try one out on this machine."""

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pip_flower.commands.choices import listed, out_dir_of, selection_of
from pip_flower.commands.running import Runners, Terminal, run_to_end, show_tables
from pip_flower.deployment.bundles import node_name, write_bundles
from pip_flower.deployment.connection import register_all
from pip_flower.deployment.local import local_deployment
from pip_flower.deployment.plan import SERVER, Plan
from pip_flower.method.configuration import load_config
from pip_flower.server.preflight import check_start
from pip_flower.storage.places import require_writable


def init(options: argparse.Namespace, console: Console) -> int:
    """Write every host's bundle, and say where each goes."""
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


def register(options: argparse.Namespace, console: Console) -> int:
    """Admit every node whose key is in the bundle."""
    for name, new in register_all(Path(options.bundle).expanduser().resolve()).items():
        console.out(f"{name}: {'registered' if new else 'was registered before'}", highlight=False)
    return 0


def local(options: argparse.Namespace, console: Console) -> int:
    """Start a deployment here, run on it, and end it."""
    plan = Plan(options.nodes, ("127.0.0.1",), tls=options.tls)
    chosen = selection_of(options)
    everybody = f"federation.clients={plan.nodes} federation.clients_per_round={plan.nodes}"
    # What is given explicitly wins, as it comes last.
    selection = replace(
        chosen, overrides=f"{everybody} federation.wait_seconds=120 {chosen.overrides}".strip()
    )
    out_dir, terminal = out_dir_of(options), Terminal(console, options.debug)
    require_writable("--out-dir", out_dir)
    check_start(load_config(selection))
    console.print(f"starting a SuperLink and {plan.nodes} nodes", highlight=False)
    with local_deployment(plan) as deployment, Runners(deployment.runner) as runners:
        result = run_to_end(runners, selection, out_dir, terminal, options.retries)
    show_tables([result], console)
    console.print(f"results: {result.path}", highlight=False)
    return 0
