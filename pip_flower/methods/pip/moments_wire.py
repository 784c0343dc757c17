"""Moments as the arrays of a message: per sample, packed, in the configured precision."""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.method.reply_checks import ArraySpec, check_counts
from pip_flower.methods.moments import (
    Drift,
    Floats,
    Moments,
    check_moment,
    factored,
    packed,
    unfactored,
    unpacked,
)

# How far below zero, in units of the trace, rounding may push an eigenvalue.
_ROUNDING = {"float32": 1e-5, "float16": 1e-2}


class WireOptions(Protocol):
    """What decides the format."""

    @property
    def transport(self) -> Literal["none", "shift", "linear"]: ...
    @property
    def covariance(self) -> Literal["diagonal", "low-rank", "full"]: ...
    @property
    def rank(self) -> int: ...
    @property
    def dtype(self) -> Literal["float32", "float16"]: ...
    @property
    def parts(self) -> tuple[str, ...]: ...


class MomentsWire:
    """`part.count` and `part.mean` by class; the scatter as `part.scatter` (its upper triangle, or variances
    alone) or `part.directions` and `part.rest`; the drift as `part.change` and, for a linear map, `part.old`,
    `part.spread` and `part.cross`. All but counts and means are per sample."""

    def __init__(self, dim: int, options: WireOptions) -> None:
        self.dim, self.options = dim, options
        self.dtype = np.dtype(options.dtype)

    def names(self, drift: bool) -> tuple[str, ...]:
        """What travels, in order."""
        kinds = self._shapes(0, drift)
        return tuple(f"{part}.{kind}" for part in self.options.parts for kind in kinds)

    def specs(self, classes: int, drift: bool) -> dict[str, ArraySpec]:
        """What the server accepts."""
        found = {}
        for part in self.options.parts:
            for kind, shape in self._shapes(classes, drift).items():
                # Counts are checked for what they say. Products of two features may be that much longer.
                scale = np.inf if kind == "count" else float(self.dim)
                dtype = np.dtype(np.int64) if kind == "count" else self.dtype
                found[f"{part}.{kind}"] = ArraySpec(shape, dtype, scale)
        return found

    def encoded(self, part: str, moments: Moments) -> NamedArrays:
        """For the message."""
        n = max(1.0, float(moments.count.sum()))
        found: dict[str, NDArray[Any]] = {"mean": moments.mean}
        if self.options.covariance == "full":
            found["scatter"] = packed(moments.scatter) / n
        elif self.options.covariance == "diagonal":
            found["scatter"] = np.diag(moments.scatter) / n
        else:
            found["directions"], found["rest"] = factored(moments.scatter / n, self.options.rank)
        if moments.drift is not None:
            drift = moments.drift
            found["change"] = drift.change
            if self.options.transport == "linear":
                found |= {"old": drift.old, "spread": packed(drift.spread) / n, "cross": drift.cross / n}
        arrays: NamedArrays = {f"{part}.count": moments.count.astype(np.int64)}
        for kind, value in found.items():
            arrays[f"{part}.{kind}"] = self._rounded(kind, value)
        return arrays

    def decoded(self, part: str, arrays: Arrays) -> Moments:
        """The inverse of `encoded`, up to what the format leaves out."""

        def get(kind: str) -> Floats:
            return np.asarray(arrays[f"{part}.{kind}"], dtype=np.float64)

        count = get("count")
        n = float(count.sum())
        drift = None
        if f"{part}.change" in arrays:
            nothing = np.zeros((self.dim, self.dim))
            drift = Drift(n, np.zeros(self.dim), get("change"), nothing, nothing)
            if self.options.transport == "linear":
                spread = n * unpacked(get("spread"), self.dim)
                drift = Drift(n, get("old"), get("change"), spread, n * get("cross"))
        return Moments(count, get("mean"), n * self._scatter(part, arrays), drift)

    def inspect(self, arrays: Arrays, samples: int) -> None:
        """Refuse what no samples can have."""
        counts = [arrays[f"{part}.count"] for part in self.options.parts]
        check_counts("count", np.concatenate(counts), samples)
        rounding = _ROUNDING[self.options.dtype]
        for part in self.options.parts:
            check_moment(f"{part}.scatter", self._scatter(part, arrays), rounding)
            if f"{part}.spread" in arrays:
                spread = arrays[f"{part}.spread"]
                check_moment(f"{part}.spread", unpacked(spread, self.dim), rounding)

    def _shapes(self, classes: int, drift: bool) -> dict[str, tuple[int, ...]]:
        dim, options = self.dim, self.options
        triangle = (dim * (dim + 1) // 2,)
        shapes: dict[str, tuple[int, ...]] = {"count": (classes,), "mean": (classes, dim)}
        if options.covariance == "low-rank":
            shapes |= {"directions": (options.rank, dim), "rest": (dim,)}
        else:
            shapes["scatter"] = triangle if options.covariance == "full" else (dim,)
        if drift:
            shapes["change"] = (dim,)
            if options.transport == "linear":
                shapes |= {"old": (dim,), "spread": triangle, "cross": (dim, dim)}
        return shapes

    def _scatter(self, part: str, arrays: Arrays) -> Floats:
        """Per sample [D, D]."""

        def get(kind: str) -> Floats:
            return np.asarray(arrays[f"{part}.{kind}"], dtype=np.float64)

        if self.options.covariance == "low-rank":
            return unfactored(get("directions"), get("rest"))
        if self.options.covariance == "diagonal":
            return np.diag(get("scatter"))
        return unpacked(get("scatter"), self.dim)

    def _rounded(self, kind: str, value: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            rounded = value.astype(self.dtype)
        if not np.isfinite(rounded).all():
            raise OverflowError(
                f"{kind} has entries up to {np.abs(value).max():.3g}, too large for {self.dtype}: "
                "give method.drift.dtype=float32"
            )
        return rounded
