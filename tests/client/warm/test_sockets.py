"""Nodes of one user share the directory of their sockets."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pip_flower.client.warm.sockets import socket_directory, sweep_sockets

SWEEPERS = 8
# Above the largest number that the system gives to a process.
GONE = 5_000_000


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not pytest's own: the names of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="pf-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield socket_directory()


def test_nodes_that_start_together_sweep_together(directory: Path) -> None:
    for process in range(GONE, GONE + 200):
        programs = directory / f"{process}.programs"
        programs.mkdir()
        (programs / "fork.sock").touch()
        (directory / f"{process}.lock").touch()
    together = Barrier(SWEEPERS)

    def sweep() -> None:
        together.wait()
        sweep_sockets()

    with ThreadPoolExecutor(SWEEPERS) as pool:
        for done in [pool.submit(sweep) for _ in range(SWEEPERS)]:
            done.result()
    assert list(directory.iterdir()) == []


def test_what_belongs_to_a_living_process_stays(directory: Path) -> None:
    mine = directory / f"{os.getpid()}.sock"
    mine.touch()
    (directory / f"{GONE}.sock").touch()
    sweep_sockets()
    assert list(directory.iterdir()) == [mine]
