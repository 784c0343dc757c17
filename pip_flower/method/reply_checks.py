"""What a reply of a client must look like before the server uses any of it; pure NumPy.

A method declares its arrays (`Method.expected`) and what else must be true of them (`Method.inspect`). One
violation rejects the reply as a whole: half a reply of a client that is wrong is not worth having.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
_MOST_METRICS = 64


class RejectedError(ValueError):
    """A reply that the server does not use; the text says why."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape (None: any length), dtype, what to multiply the limit of the norm with, and whether NaN and
    infinity are refused."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    scale: float = 1.0
    finite: bool = True

    @classmethod
    def like(cls, array: NDArray[Any], scale: float = 1.0) -> "ArraySpec":
        """As an array that is there."""
        return cls(array.shape, array.dtype, scale)


def check_names(given: Collection[str], wanted: Collection[str]) -> None:
    """Exactly the arrays that were asked for."""
    missing, extra = set(wanted) - set(given), set(given) - set(wanted)
    if missing:
        raise RejectedError(f"array {min(missing)!r} is missing")
    if extra:
        raise RejectedError(f"array {_short(min(map(str, extra)))} was not asked for")


def check_array(name: str, array: NDArray[Any], spec: ArraySpec, max_norm: float) -> None:
    """Shape, dtype, finiteness and length of one array."""
    if array.dtype != spec.dtype:
        raise RejectedError(f"{name} is {array.dtype} instead of {spec.dtype}")
    fits = array.ndim == len(spec.shape) and all(
        wanted in (None, size) for size, wanted in zip(array.shape, spec.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in spec.shape)
        raise RejectedError(f"{name} has shape {array.shape} instead of ({wanted})")
    if not spec.finite:
        return
    if not np.isfinite(array).all():
        raise RejectedError(f"{name} has NaN or infinity in it")
    norm, limit = _norm(array), max_norm * spec.scale
    if norm > limit:
        raise RejectedError(f"{name} has a norm of {norm:.3g}, above {limit:.3g} (validation.max_norm)")


def check_samples(value: Any, maximum: int) -> int:
    """A whole number of samples, one at least, not absurdly many."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedError(f"the number of samples is {_short(value)}, not a whole number")
    if value < 1:
        raise RejectedError(f"it claims {value} samples")
    if value > maximum:
        raise RejectedError(f"it claims {value} samples, above {maximum} (validation.max_samples)")
    return value


def check_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Figures for the log: finite numbers."""
    if len(values) > _MOST_METRICS:
        raise RejectedError(f"it has {len(values)} metrics")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise RejectedError(f"metric {_short(name)} is {_short(value)}, not a finite number")
        numbers[name] = float(value)
    return numbers


def check_counts(name: str, counts: NDArray[Any], total: int) -> None:
    """Whole numbers, none negative, `total` at most together."""
    if counts.size and (counts.min() < 0 or not np.array_equal(counts, np.floor(counts))):
        raise RejectedError(f"{name} has entries that count nothing")
    # In floating point: a sum of huge integers would wrap around to something harmless.
    if counts.astype(np.float64).sum() > total:
        raise RejectedError(f"{name} adds up to more than the {total} samples it claims")


def check_class_sums(sums: tuple[str, NDArray[Any]], counts: tuple[str, NDArray[Any]], samples: int) -> None:
    """Counts of a client's samples by class, and sums over them [classes, ...]; nothing comes of nothing.
    Both are given with their names."""
    check_counts(*counts, samples)
    if np.any(sums[1][counts[1] == 0]):
        raise RejectedError(f"{sums[0]} has a class that {counts[0]} does not have")


def check_hits(
    values: Mapping[str, Any], tasks: int, maximum: int, prefix: str = ""
) -> list[tuple[int, int]]:
    """Test samples recognised and in all, of each task: `correct.t` and `total.t`, after `prefix`."""
    hits = []
    for task in range(tasks):
        pair = values.get(f"{prefix}correct.{task}"), values.get(f"{prefix}total.{task}")
        correct, total = (
            value if isinstance(value, int) and not isinstance(value, bool) else -1 for value in pair
        )
        if not 0 <= correct <= total <= maximum:
            raise RejectedError(
                f"{_short(pair[0])} of {_short(pair[1])} test samples of task {task + 1} cannot be right"
            )
        hits.append((correct, total))
    return hits


def _norm(array: NDArray[Any]) -> float:
    """The length of an array of finite numbers, however large they are."""
    values = np.abs(array.astype(np.float64)).ravel()
    largest = float(values.max(initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if largest else 0.0


def _short(value: Any) -> str:
    """What a client sent, in an error message of bearable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
