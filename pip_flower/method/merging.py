"""How the server merges what clients reply with, array by array."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.aggregation import is_plain, merged_model, robust_total
from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.sections import AggregationConfig


@dataclass(frozen=True)
class Mean:
    """The clients' mean by their weights, or the configured robust rule in its place."""


@dataclass(frozen=True)
class Sum:
    """The clients' sum; `running` adds it to what the server has, otherwise it replaces that.

    A sum over samples names the array with their `counts`, and the axis that runs over groups of samples (one
    group in all without an axis): a robust rule compares the clients' means. Counts have none, and are
    always added up.
    """

    counts: str = ""
    axis: int | None = None
    running: bool = True


@dataclass(frozen=True)
class Kept:
    """The server's own value stays, whatever clients send."""


Merge = Mean | Sum | Kept


def merged(
    arrays: Arrays,
    updates: Sequence[Arrays],
    weights: Sequence[float],
    rules: Mapping[str, Merge],
    config: AggregationConfig,
) -> NamedArrays:
    """The arrays that `updates` of clients with these `weights` change, by the rule of each."""
    averaged = [name for name, rule in rules.items() if isinstance(rule, Mean)]
    changed: NamedArrays = {}
    if averaged:
        models = [pick(update, averaged) for update in updates]
        changed |= merged_model(models, weights, arrays, config)
    for name, rule in rules.items():
        if isinstance(rule, Sum):
            robust = bool(rule.counts) and not is_plain(config)
            add = _robust_sum if robust else _plain_sum
            changed[name] = add(name, rule, updates, arrays, config)
    return changed


def _plain_sum(
    name: str,
    rule: Sum,
    updates: Sequence[Arrays],
    arrays: Arrays,
    config: AggregationConfig,  # noqa: ARG001
) -> NDArray[Any]:
    total = arrays[name] if rule.running else np.zeros_like(updates[0][name])
    for update in updates:
        total = total + update[name]
    return total


def _robust_sum(
    name: str, rule: Sum, updates: Sequence[Arrays], arrays: Arrays, config: AggregationConfig
) -> NDArray[Any]:
    """What there is and a robust total of the replies, group by group."""
    source = arrays if rule.running else {key: np.zeros_like(updates[0][key]) for key in (name, rule.counts)}
    so_far, axis = source[name], rule.axis

    def groups(array: NDArray[Any]) -> NDArray[Any]:
        return array[None] if axis is None else np.moveaxis(array, axis, 0)

    def rows(array: NDArray[Any]) -> NDArray[Any]:
        found = groups(array)
        return found.reshape(len(found), -1)

    total = robust_total(
        [rows(update[name]) for update in updates],
        [update[rule.counts] for update in updates],
        (rows(so_far), source[rule.counts]),
        config,
    ).reshape(groups(so_far).shape)
    return np.asarray(so_far + (total[0] if axis is None else np.moveaxis(total, 0, axis)))
