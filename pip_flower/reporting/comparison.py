"""Which runs may stand in one table, and which of them are seeds of one row.

Runs of one table differ in nothing that a result depends on but the seed, the method and how it trains. Runs
of one row differ in the seed alone, and each seed counts once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pip_flower.reporting.results import WEIGHTS, RunResult

# Settings in which methods of one table may differ.
_OF_METHODS = ("method.", "training.", WEIGHTS)
_IMAGES = "images"
_NAMED_KEYS = 6


@dataclass(frozen=True)
class Comparison:
    """Runs by table, each with its row, and what a reader must know about them."""

    tables: list[list[RunResult]]
    notices: list[str]


def compare_runs(results: Iterable[RunResult]) -> Comparison:
    """Runs that belong together, together; what differs, repeats or is missing is told."""
    tables: list[list[RunResult]] = []
    notices: list[str] = []
    for number, runs in enumerate(_alike(_with_images(results), _shared), start=1):
        if tables:
            told = _differences(_shared(tables[0][0]), _shared(runs[0]))
            notices.append(f"table {number} stands apart from table 1: {told}")
        tables.append(list(_rows(runs, notices)))
        notices += _uneven_seeds(tables[-1])
    return Comparison(tables, notices)


def _with_images(results: Iterable[RunResult]) -> list[RunResult]:
    """Runs whose settings tell which images they used. Where the server had none, because clients tested, it
    is those that another run found at the same place."""
    runs = list(results)
    known = {run.data_dir: run.images for run in runs if run.images}
    found = [run.images or known.get(run.data_dir, run.data_dir) for run in runs]
    return [
        replace(run, settings={**run.settings, _IMAGES: images})
        for run, images in zip(runs, found, strict=True)
    ]


def _rows(runs: list[RunResult], notices: list[str]) -> Iterator[RunResult]:
    """The runs of a table that count, with the names of their rows."""
    methods: dict[str, list[RunResult]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    for method, members in methods.items():
        variants = _alike(members, _own)
        for number, variant in enumerate(variants, start=1):
            row = method if number == 1 else f"{method} ({number})"
            if number > 1:
                told = _differences(_own(variants[0][0]), _own(variant[0]))
                notices.append(f"{row} is not the same as {method}: {told}")
            yield from (replace(run, row=row) for run in _newest(variant, notices))


def _newest(runs: list[RunResult], notices: list[str]) -> Iterator[RunResult]:
    """One run for each seed, in the order of their first appearance."""
    seeds: dict[int, list[RunResult]] = {}
    for run in runs:
        seeds.setdefault(run.seed, []).append(run)
    for seed, repeats in seeds.items():
        *older, newest = sorted(repeats, key=lambda run: (run.started, run.path.name))
        for run in older:
            notices.append(f"{run.path} is left out: {newest.path} is newer, of the same seed {seed}")
        yield newest


def _uneven_seeds(runs: list[RunResult]) -> list[str]:
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.row, []).append(run.seed)
    if len({tuple(sorted(found)) for found in seeds.values()}) < 2:
        return []
    told = "; ".join(f"{row}: {', '.join(map(str, sorted(found)))}" for row, found in seeds.items())
    return [f"rows have different seeds: {told}"]


def _alike(results: Iterable[RunResult], part: Callable[[RunResult], Any]) -> list[list[RunResult]]:
    """Runs grouped by a part of their settings, in order of first appearance."""
    groups: dict[str, list[RunResult]] = {}
    for run in results:
        groups.setdefault(json.dumps(part(run), sort_keys=True), []).append(run)
    return list(groups.values())


def _own(run: RunResult) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if key.startswith(_OF_METHODS)}


def _shared(run: RunResult) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if not key.startswith(_OF_METHODS)}


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    changed = [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
    told = [f"{key}: {_shown(second, key)} instead of {_shown(first, key)}" for key in changed]
    more = f" and {len(told) - _NAMED_KEYS} more" if len(told) > _NAMED_KEYS else ""
    return "; ".join(told[:_NAMED_KEYS]) + more


def _shown(settings: Mapping[str, Any], key: str) -> str:
    text = str(settings.get(key, "not there"))
    return text if len(text) <= 40 else f"{text[:12]}…"
