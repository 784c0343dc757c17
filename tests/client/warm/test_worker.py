"""The real worker in a process of its own, for an owner that stands for a SuperNode."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from pip_flower.client.adapter import REPLIES
from pip_flower.client.warm.caller import ask_worker
from pip_flower.client.warm.sockets import UnsafePlaceError, socket_directory, socket_path
from pip_flower.flower.records import content, to_record
from support.runs import strategy_for

RunConfig = dict[str, Any]
RUN = "0" * 32


@pytest.fixture
def owner(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process that the worker must not outlive."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(short_path))
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()
    wait_for(lambda: not workers_of(process.pid))


def workers_of(owner: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pip_flower.client.warm.worker" in words and str(owner).encode() in words:
            found.append(int(path.parent.name))
    return found


PLACE = r"\(pip_flower/client/numpy_client.py:\d+ in __init__\)"


def at_work(worker: int) -> bool:
    """Whether it has got a message: it loads torch only then."""
    return "libtorch" in Path(f"/proc/{worker}/maps").read_text()


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def context_of(run_config: RunConfig, overrides: str = "", partition: int = 1) -> Context:
    run_config = run_config | {"overrides": f"{run_config['overrides']} {overrides}"}
    return Context(1, 42, {"partition-id": partition, "num-partitions": 4}, RecordDict(), run_config)


def training(run_config: RunConfig) -> RecordDict:
    strategy = strategy_for(run_config)
    strategy.arrays |= strategy.method.start_task(0, strategy.arrays)
    return content(
        to_record(strategy.method.message(0, strategy.arrays)),
        config={"task": 0, "round": 1, "run": RUN, "since": 0},
    )


def asking() -> RecordDict:
    return content(config={"run": RUN})


def test_one_warm_worker_replies_as_the_process_itself_would(owner: int, small_run: RunConfig) -> None:
    context, question = context_of(small_run), training(small_run)
    here = REPLIES["train"](question, context)
    there = ask_worker("train", question, context, owner)
    (worker,) = workers_of(owner)
    again = ask_worker("train", question, context, owner)
    assert workers_of(owner) == [worker]
    for found in (there, again):
        assert found["arrays"].keys() == here["arrays"].keys()
        assert all(found["arrays"][name].data == here["arrays"][name].data for name in here["arrays"])
        assert found["metrics"]["last_epoch_loss"] == here["metrics"]["last_epoch_loss"]
        assert found["metrics"]["backbone_loads"] == 1
    assert socket_path(owner).parent.stat().st_mode & 0o777 == 0o700

    # What goes wrong there is told as if it had gone wrong here.
    with pytest.raises(
        RuntimeError, match="partition 9 does not exist: there are 4 clients " + PLACE
    ) as error:
        ask_worker("query", asking(), context_of(small_run, partition=9), owner)
    assert str(error.type) == "<class 'ValueError'>"
    # That was another node's configuration: the worker before was replaced, not joined.
    (other,) = workers_of(owner)
    assert other != worker

    # Killed in the middle of its work, it is started again and the caller gets its reply.
    def kill_at_work() -> None:
        wait_for(lambda: workers_of(owner) not in ([], [other]) and at_work(workers_of(owner)[0]))
        os.kill(workers_of(owner)[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_at_work)
    killer.start()
    another = context_of(small_run, "training.epochs=200")
    assert ask_worker("query", asking(), another, owner)["config"]["partition"] == 1
    killer.join()

    # It ends with its owner, at work or not.
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    wait_for(lambda: not workers_of(owner))
    assert not socket_path(owner).exists()


def test_it_ends_when_it_is_too_large_or_idle_and_comes_back(owner: int, small_run: RunConfig) -> None:
    large = context_of(small_run, "runtime.worker_memory=1")
    assert ask_worker("query", asking(), large, owner)["config"]["partition"] == 1
    wait_for(lambda: not workers_of(owner))
    idle = context_of(small_run, "runtime.worker_idle=0.5")
    assert ask_worker("query", asking(), idle, owner)["config"]["partition"] == 1
    wait_for(lambda: not workers_of(owner))
    assert not socket_path(owner).exists()


def test_a_directory_that_others_may_enter_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    socket_directory().chmod(0o755)
    with pytest.raises(UnsafePlaceError, match="is not a private directory of this user"):
        socket_directory()


def test_a_directory_with_too_long_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 20)))
    with pytest.raises(UnsafePlaceError, match="set TMPDIR to a shorter directory"):
        socket_directory()
