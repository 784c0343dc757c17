"""`pip-flower run`."""

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from pip_flower.commands.choices import out_dir_of, selection_of
from pip_flower.commands.in_process import Job, run_here
from pip_flower.commands.running import Runners, Terminal, run_to_end, show_tables
from pip_flower.deployment.connection import deployment_runner
from pip_flower.flower.launcher import flower_runner
from pip_flower.method.configuration import load_config
from pip_flower.server.preflight import check_start
from pip_flower.server.resume import resumed, run_directory
from pip_flower.storage.places import require_writable


def run(options: argparse.Namespace, console: Console) -> int:
    """One run, new or taken up again."""
    selection = selection_of(options)
    if options.resume:
        options.resume = str(Path(options.resume).expanduser().resolve())
        options.out_dir = str(Path(options.resume).parent)
        selection = resumed(Path(options.resume), selection)
        run_directory(options.resume).require_free()
    if not options.deployment:
        require_writable("--out-dir", out_dir_of(options))
        check_start(load_config(selection))
    if options.in_process:
        result = run_here(Job(selection, out_dir_of(options)), options.resume)
        show_tables([result], console)
        console.print(f"results: {result.path}", highlight=False)
        return 0
    bundle = Path(options.deployment).expanduser().resolve()
    make = partial(deployment_runner, bundle) if options.deployment else flower_runner
    terminal = Terminal(console, options.debug)
    with Runners(make) as runners:
        result = run_to_end(
            runners, selection, out_dir_of(options), terminal, options.retries, options.resume
        )
    show_tables([result], console)
    console.print(f"results: {result.path}", highlight=False)
    return 0
