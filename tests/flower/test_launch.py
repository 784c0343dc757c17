"""A launch ends with its launcher, whatever ends that; with plain programs in place of Flower's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pip_flower.flower.launch import Launch, interruptible
from pip_flower.flower.watchdog import Ending, Family
from support.trials import heed_signals

ROOT = Path(__file__).resolve().parents[2]
# Leaves its parent, its group and its session, and does not mind being asked to end.
STUBBORN = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): sys.exit()\n"
    "os.setsid()\n"
    "open(sys.argv[1], 'a').close()\n"
    "time.sleep(600)\n"
)
LAUNCHER = f"""
import os, subprocess, sys, time
from pathlib import Path
from pip_flower.flower.launch import Launch, interruptible
from pip_flower.flower.watchdog import Family

with interruptible():
    launch = Launch(patience=1)
    home = Path(sys.argv[1])
    home.mkdir()
    launch.remove_afterwards(home)
    environment = launch.environment(os.environ)
    subprocess.Popen([sys.executable, "-c", {STUBBORN!r}, str(home / "up")], env=environment).wait()
    subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    try:
        print(launch.mark, flush=True)
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        launch.end()
        print("left:", len(Family(launch.mark).living()), flush=True)
"""


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT],
        [signal.SIGHUP],
        [signal.SIGKILL],
    ],
    ids=lambda signals: "+".join(one.name for one in signals),
)
def test_nothing_is_left_of_a_launch(signals: list[signal.Signals], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(home)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            family = Family(launcher.stdout.readline().strip())
            wait_until((home / "up").exists)
            wait_until(lambda: len(family.living()) == 2)
            for one in signals:
                launcher.send_signal(one)
                time.sleep(0.05)
            said = launcher.stdout.read()
        finally:
            launcher.kill()
    if signals != [signal.SIGKILL]:
        # It waited until everything was gone, and a second signal did not keep it from doing so.
        assert said == "left: 0\n"
        assert family.living() == set()
    wait_until(lambda: not family.living())
    wait_until(lambda: not home.exists())


def test_a_killed_watchdog_is_replaced(tmp_path: Path) -> None:
    launch = Launch(patience=1)
    child = subprocess.Popen(["sleep", "600"], env=launch.environment(os.environ))
    launch._watchdog.kill()
    launch._watchdog.wait()
    launch.end()
    assert child.wait() != 0


def test_a_farewell_comes_before_the_end(tmp_path: Path) -> None:
    note = tmp_path / "note"
    launch = Launch()
    sleeper = subprocess.Popen(["sleep", "600"], env=launch.environment(os.environ))
    launch.farewell(["sh", "-c", f"kill -0 {sleeper.pid} && echo alive > {note}"], os.environ)
    launch.end()
    assert note.read_text() == "alive\n"
    assert sleeper.wait() == -signal.SIGTERM


def test_groups_are_ended_where_environments_cannot_be_read() -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Ending(patience=0.01).end_groups({child.pid})
    assert child.wait() < 0


def test_a_run_under_nohup_does_not_mind_a_closed_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
