"""The embedded data set: scans of handwritten digits that ship inside scikit-learn."""

import numpy as np

from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.arrays import array_part
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.listing import Listing
from pip_flower.runtime.streams import stream


def list_digits(config: DatasetConfig) -> Listing:
    """1,797 scans of 8 x 8 pixels; every fifth of a class tests."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    # The split is part of the data set: it does not change with the seed of a run.
    order = stream(0, "digits", "split").permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    everything = array_part(grey, labels, "scan", config.stored_size)
    test = rank % 5 == 0
    names = tuple(str(label) for label in range(10))
    return Listing(names, everything.take(np.flatnonzero(~test)), everything.take(np.flatnonzero(test)))


DIGITS = Source("digits", "nothing: the images ship with scikit-learn", list_digits, needs_files=False)
