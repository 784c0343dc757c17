"""Mutated replies of clients, and what must be true of those that the server accepts.

The judge shares no code with the server's own checks.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st
from numpy.typing import NDArray

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.config.compose import Selection
from pip_flower.flower.records import ARRAYS, METRICS, SAMPLES, to_record
from pip_flower.method.configuration import load_config
from pip_flower.method.exchange import Contribution
from pip_flower.method.registry import make_method
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.workspace import shared_workspace
from pip_flower.rounds.replies import read_update
from pip_flower.rounds.strategy import TaskStrategy

METHODS = ("pip-dualprompt", "fed-l2p", "ncm", "ranpac")
_OVERRIDES = "training.epochs=1 federation.clients=100 federation.clients_per_round=10"
_SMALL = {"ranpac": "method.features=12"}
_SECONDS_EACH = 20

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Honest:
    """What a real client replied in the first round, and the strategy that waits for it."""

    strategy: TaskStrategy
    arrays: Arrays
    samples: int
    metrics: dict[str, float]


def honest_reply(method: str) -> Honest:
    """One client of the embedded federation, small enough to train in a moment."""
    overrides = f"{_OVERRIDES} {_SMALL.get(method, '')}"
    config = load_config(Selection(method=method, overrides=overrides))
    strategy = TaskStrategy(make_method(shared_workspace(config)))
    strategy.arrays |= strategy.method.start_task(0, strategy.arrays)
    sent = list(strategy.method.message(0, strategy.arrays).values())
    values, samples, metrics = FederatedClient(strategy.method, 0).fit(sent, {"task": 0, "round": 1})
    named = dict(zip(strategy.method.sent_up(0), values, strict=True))
    return Honest(strategy, named, samples, {name: float(str(v)) for name, v in metrics.items()})


_NASTY = st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 1e300, -1.0, 0.0, 1e7])
_NAMES = st.sampled_from(["", "general", "head.9.weight", "prototype.mean", "sum.1", "../../etc", "x" * 500])
_NUMBERS = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(width=64),
    st.lists(st.floats(), max_size=3),
    st.sampled_from([0, 1]),
)
_DTYPES = st.sampled_from(
    ["float16", "float32", "float64", "int64", "int8", "bool", "complex64", ">f4", "U3"]
)


@st.composite
def _array(draw: st.DrawFn, value: NDArray[Any]) -> Array:
    """`value`, changed in one of the ways in which an array can be wrong; or not at all."""
    kind = draw(
        st.sampled_from(["same", "entry", "scale", "dtype", "shape", "bytes", "lie", "rows", "noise"])
    )
    changed = np.array(value)
    if kind == "entry" and changed.size:
        number = draw(_NASTY)
        with np.errstate(all="ignore"):
            changed.flat[draw(st.integers(0, changed.size - 1))] = np.float64(number).astype(changed.dtype)
    elif kind == "scale":
        with np.errstate(all="ignore"):
            changed = (changed * draw(st.sampled_from([-1, 0, 2, 1e6, 1e12, -1e30]))).astype(changed.dtype)
    elif kind == "dtype":
        with np.errstate(all="ignore"):
            changed = changed.astype(draw(_DTYPES))
    elif kind == "shape":
        changed = draw(
            st.sampled_from(
                [changed.ravel(), changed[None], changed.T, changed[:0], changed[..., None], changed[:-1]]
            )
        )
    elif kind == "rows" and changed.ndim:
        changed = np.concatenate([changed, changed])
    elif kind == "noise":
        changed = (
            np.random.default_rng(draw(st.integers(0, 999)))
            .permutation(changed.ravel())
            .reshape(changed.shape)
        )
    record = Array(np.ascontiguousarray(changed))
    if kind == "bytes":
        data = bytearray(record.data)
        for _ in range(draw(st.integers(1, 4))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        record.data = bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)
    elif kind == "lie":
        record.data = record.data.replace(b"'shape': (", b"'shape': (9" + b"9" * draw(st.integers(0, 12)))
    return record


@st.composite
def replies(draw: st.DrawFn, honest: Honest) -> RecordDict:
    """A client's whole reply, with some of it changed."""
    touched = draw(st.sets(st.sampled_from(sorted(honest.arrays)), max_size=3))
    arrays = {
        name: draw(_array(value)) if name in touched else Array(np.ascontiguousarray(value))
        for name, value in honest.arrays.items()
    }
    metrics: dict[str, Any] = {SAMPLES: honest.samples, **honest.metrics}
    if draw(st.booleans()):
        metrics[SAMPLES] = draw(_NUMBERS)
    if draw(st.integers(0, 3)) == 0:
        metrics[draw(st.sampled_from([*honest.metrics, "new"]))] = draw(_NUMBERS)
    if draw(st.integers(0, 5)) == 0:
        metrics.pop(SAMPLES)
    if draw(st.integers(0, 3)) == 0:
        arrays.pop(draw(st.sampled_from(sorted(arrays))))
    if draw(st.integers(0, 3)) == 0:
        arrays[draw(_NAMES)] = Array(np.zeros(2))
    records = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: MetricRecord(metrics)})
    damage = draw(st.integers(0, 11))
    if damage == 0:
        del records[ARRAYS]
    elif damage == 1:
        del records[METRICS]
    elif damage == 2:
        records["more"] = to_record({"x": np.ones(3)})
    elif damage == 3:
        records["config"] = ConfigRecord({"task": 99})
    return records


def judge_reply(honest: Honest, records: RecordDict, counts: Counter[str]) -> None:
    """Rejected with a reason, or sane and harmless."""
    strategy = honest.strategy
    began = time.process_time()
    try:
        update = read_update(records, strategy.method, 0, strategy.arrays, strategy.config.validation)
    except RejectedError as error:
        counts["rejected" if str(error).strip() else "rejected without a reason"] += 1
    else:
        counts["accepted"] += 1
        _require_sane(honest, update.arrays, update.samples, update.metrics)
        first = strategy.schedule.round(1)
        changed = strategy.method.merge(first, [Contribution(0, 1, update)], strategy.arrays)
        bad = [name for name, value in changed.items() if not np.isfinite(value).all()]
        assert not bad, f"merging an accepted reply gave {bad}"
    assert time.process_time() - began < _SECONDS_EACH, "it took too long"


def _require_sane(honest: Honest, arrays: Mapping[str, NDArray[Any]], samples: int, metrics: Any) -> None:
    """What anybody would ask of a reply, written without the server's checks."""
    limits = honest.strategy.config.validation
    assert set(arrays) == set(honest.arrays)
    assert 1 <= samples <= limits.max_samples
    assert all(np.isfinite(value) for value in metrics.values())
    for name, value in arrays.items():
        known = honest.arrays[name]
        assert value.dtype == known.dtype
        assert value.shape[1:] == known.shape[1:]
        assert name.startswith("prototype.") or value.shape == known.shape
        assert not np.isnan(value).any()
        assert not np.isinf(value).any()
        if name.startswith(("count", "labels", "prototype.count")):
            assert (value >= 0).all()
            assert float(value.sum()) <= samples
        if not name.startswith(("prototype.c", "sum", "gram", "cross", "count", "labels")):
            assert float(np.sqrt((value.astype(np.float64) ** 2).sum())) <= limits.max_norm
    if "prototype.classes" in arrays:
        classes = arrays["prototype.classes"].tolist()
        assert set(classes) <= set(honest.strategy.method.workspace.tasks.classes[0])
        assert len(set(classes)) == len(classes) == len(arrays["prototype.mean"])
        assert (arrays["prototype.variance"] >= 0).all()
        assert (arrays["prototype.count"] >= 1).all()
