"""Runs in this process, or in several of it, without Flower's daemons."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pip_flower.commands.running import run_config_of
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.flower.launcher import LaunchError
from pip_flower.method.configuration import load_config
from pip_flower.reporting.results import RunResult
from pip_flower.server.in_process import serve_in_process


@dataclass(frozen=True)
class Job:
    """A run that is to be made in `out_dir`."""

    selection: Selection
    out_dir: Path


def run_here(job: Job, resume: str = "") -> RunResult:
    """The run to its end, its progress on standard output."""
    clients = load_config(job.selection).federation.clients
    return RunResult.read(serve_in_process(run_config_of(job.selection, job.out_dir, resume), clients))


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, RunResult]]:
    """Every run, in so many processes at a time; each is handed on as it ends."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_run_quietly, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _run_quietly(job: Job) -> RunResult:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            return run_here(job)
        except ConfigError as error:
            # One that can be sent to another process.
            raise LaunchError(str(error)) from None
