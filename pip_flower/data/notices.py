"""Tells a person how far long work on data has come: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

_SECONDS_BETWEEN_LINES = 5.0
Advance = Callable[[int], None]


def say(text: str) -> None:
    """A line for whoever watches, or for the log of a run."""
    print(f"pip-flower: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int, *, in_bytes: bool = False) -> Iterator[Advance]:
    """`advance(done)` tells how much of `total` is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, total, in_bytes)
        return
    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    with Progress(TextColumn(title), BarColumn(), count, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total or None)
        yield lambda done: bar.update(task, completed=done)


def _lines(title: str, total: int, in_bytes: bool) -> Advance:
    last = time.monotonic()

    def shown(count: int) -> str:
        return f"{count / 1e6:,.1f} MB" if in_bytes else f"{count:,}"

    def advance(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            shown = (
                (f"{done / 1e6:,.1f}", f"{total / 1e6:,.1f} MB") if in_bytes else (f"{done:,}", f"{total:,}")
            )
            say(f"{title}: {shown[0]} of {shown[1]}")

    return advance
