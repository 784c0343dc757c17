import subprocess
import sys
import threading
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

from pip_flower.flower.polling import hasten_pulls

ROOT = str(Path(__file__).resolve().parents[1])
SLEEPER = "import time\ndef doze(seconds):\n    time.sleep(seconds)\n"


def test_only_the_sleeps_of_the_one_module_are_shortened(tmp_path: Path) -> None:
    for name in ("hasty", "patient"):
        (tmp_path / f"{name}.py").write_text(SLEEPER)
    script = (
        "import time, hasty, patient; from pip_flower.flower.polling import shorten_sleeps\n"
        "slept = []\n"
        "time.sleep = slept.append\n"
        "shorten_sleeps('hasty', 0.2)\n"
        "for module in (hasty, patient):\n"
        "    for seconds in (3, 0.5, 0.01):\n"
        "        module.doze(seconds)\n"
        "print(slept)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[0.2, 0.05, 0.01, 3.0, 0.5, 0.01]"


def test_parts_that_come_a_moment_later_cost_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = dict(pull_objects.__kwdefaults__ or {})
    monkeypatch.setattr(pull_objects, "__kwdefaults__", defaults)
    hasten_pulls()
    waited: list[float] = []
    waiting = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None:
            waited.append(timeout)
        return waiting(event, timeout)

    def pull(name: str) -> bytes:
        if len(waited) < 2:
            raise ObjectUnavailableError(name)
        return b"here"

    monkeypatch.setattr(threading.Event, "wait", wait)
    assert pull_objects(["part"], pull) == {"part": b"here"}
    # Flower itself would wait for three seconds, give or take a fifth.
    assert sum(waited) < 0.2
