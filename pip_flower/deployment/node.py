"""`python -m pip_flower.deployment.node`: Flower's SuperNode, with waits that suit rounds of seconds.

A SuperNode that finds no message waits three seconds before it looks again, and Flower has no option for
that. As the next message never is there yet when a node has just sent its reply, every round would pay those
seconds. Here, the waits of that one loop are cut to `--poll-seconds`, and the processes of messages are
forked (`prefork`); everything else is Flower's own `flower-supernode`, with all its options.
With PIP_FLOWER_WORKER=off every message gets a fresh process that does all the work, as without this project.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from pip_flower.client.warm.sockets import worker_wanted
from pip_flower.deployment import prefork
from pip_flower.deployment.prefork import start_forking
from pip_flower.flower.polling import hasten_pulls, shorten_sleeps

_PROGRAM = "flower-supernode"
_POLL_SECONDS = 0.25
_WAITING = "flwr.supernode.start_client_internal"
_TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"


def run_node(options: Sequence[str], poll_seconds: float) -> None:
    """`flower-supernode` with `options`; returns or exits as it does."""
    os.environ.setdefault(_TASK_POLL, str(max(0.01, min(poll_seconds / 2, 1.0))))
    # The SuperNode starts its helpers by name.
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    hasten_pulls()
    supernode = _entry(_PROGRAM)
    if worker_wanted():
        start_forking(_entry(prefork.PROGRAM))
    shorten_sleeps(_WAITING, poll_seconds)
    sys.argv = [_PROGRAM, *options]
    supernode()


def _entry(program: str) -> Callable[[], object]:
    (script,) = entry_points(group="console_scripts", name=program)
    main: Callable[[], object] = script.load()
    return main


def main() -> None:
    """Take our own option, pass on the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--poll-seconds", type=float, default=_POLL_SECONDS)
    own, flowers = parser.parse_known_args()
    if own.poll_seconds <= 0:
        parser.error(f"--poll-seconds: {own.poll_seconds} is no pause; give a positive number")
    run_node(flowers, own.poll_seconds)


if __name__ == "__main__":
    main()
