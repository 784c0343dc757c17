"""Training images that are set aside, so that settings can be chosen without looking at test images."""

import hashlib

import numpy as np

from pip_flower.data.samples import Samples


def hold_out(samples: Samples, fraction: float) -> tuple[Samples, Samples]:
    """Training samples less a fraction of each class, and that fraction; both in their old order.

    Which ones depends on their ids alone, not on the run's seed: all runs are validated on the same images.
    A class keeps at least one training sample, and gives at least one away if it has two.
    """
    if fraction == 0:
        return samples, samples.take(np.zeros(0, dtype=np.int64))
    held = np.zeros(len(samples), dtype=np.bool_)
    ranks = np.array([_rank(int(id_)) for id_ in samples.ids], dtype=np.uint64)
    for label in np.unique(samples.labels):
        rows = np.flatnonzero(samples.labels == label)
        wanted = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[rows[np.argsort(ranks[rows], kind="stable")[:wanted]]] = True
    return samples.take(np.flatnonzero(~held)), samples.take(np.flatnonzero(held))


def _rank(id_: int) -> int:
    return int.from_bytes(hashlib.sha256(f"validation {id_}".encode()).digest()[:8], "big")
