"""A client's memory of old classes: the ids of exemplars, which never leave it.

The images are the client's own samples; only their ids are kept, the best exemplars of a class first.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples

_PREFIX = "exemplars."

Ids = NDArray[np.int64]
Features = NDArray[np.floating]


@dataclass(frozen=True)
class MemoryOptions:
    """Room for exemplars on a client: a fraction of its training samples of the classes that it has learnt,
    or a number of exemplars, if that is not 0."""

    fraction: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]
    exemplars: Annotated[int, Bounds(0)]

    def budget(self, samples: int) -> int:
        """How many exemplars a client may keep that has so many samples of the classes it has learnt."""
        # The tolerance keeps 0.29 * 100 at 29 although the product falls a hair short of it.
        return self.exemplars or max(1, int(self.fraction * samples + 1e-9))


@dataclass(frozen=True)
class ExemplarMemory:
    """Room for `budget` exemplars per client, shared equally by its classes, under `exemplars.<label>`.

    Whatever else the mapping holds is none of its business.
    """

    budget: int
    choice: Literal["herding", "random"] = "herding"

    def updated(
        self, kept: Arrays, samples: Samples, features: Features | None, rng: np.random.Generator | None
    ) -> NamedArrays:
        """The memory with the classes of `samples` chosen anew and all cut to their share; every class keeps
        one exemplar at least.

        Herding needs the samples' unit features [n, D], the random choice needs `rng`.
        """
        memory: NamedArrays = {_name(label): ids for label, ids in _by_label(kept).items()}
        labels = np.unique(samples.labels)
        share = self._share(len(memory.keys() | {_name(int(label)) for label in labels}))
        for label in labels:
            members = np.flatnonzero(samples.labels == label)
            order = self._choose(members, share, features, rng)
            memory[_name(int(label))] = samples.ids[members][order]
        return {name: ids[:share] for name, ids in memory.items()}

    def shortened(self, kept: Arrays, labels: Collection[int]) -> NamedArrays:
        """The memory cut to the share that each class has once `labels` are learnt too."""
        classes = _by_label(kept)
        share = self._share(len(classes.keys() | set(labels)))
        return {_name(label): ids[:share] for label, ids in classes.items()}

    def ids(self, kept: Arrays, label: int) -> Ids:
        """The exemplars of a class, the best first."""
        return np.asarray(kept.get(_name(label), np.zeros(0, dtype=np.int64)))

    def rehearsed(self, kept: Arrays, train: Samples, excluding: Collection[int]) -> Samples:
        """The exemplars among `train` of all classes but those `excluding`, in the order of `train`."""
        ids = [ids for label, ids in _by_label(kept).items() if label not in excluding]
        wanted = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        return train.take(np.flatnonzero(np.isin(train.ids, wanted)))

    def samples(self, kept: Arrays, train: Samples) -> Samples:
        """All exemplars among `train`."""
        return self.rehearsed(kept, train, excluding=())

    def held_out(self, kept: Arrays, fraction: float) -> tuple[NamedArrays, NamedArrays]:
        """Two memories, to train on and to validate on: the last `fraction` of each class's exemplars, one at
        least, is held out; a class with a single exemplar trains on it."""
        training: NamedArrays = {}
        validation: NamedArrays = {}
        for label, ids in _by_label(kept).items():
            cut = max(1, len(ids) - max(1, round(fraction * len(ids))))
            training[_name(label)] = ids[:cut]
            if len(ids) > cut:
                validation[_name(label)] = ids[cut:]
        return training, validation

    def share_of(self, kept: Arrays, total: int) -> float:
        """How much of `total` samples the memory holds, e.g. of all that the client has seen."""
        return sum(len(ids) for ids in _by_label(kept).values()) / total if total else 0.0

    def _share(self, classes: int) -> int:
        return max(1, self.budget // max(1, classes))

    def _choose(
        self, members: Ids, count: int, features: Features | None, rng: np.random.Generator | None
    ) -> Ids:
        if self.choice == "herding":
            if features is None:
                raise ValueError("herding chooses by features: give the unit features of the samples")
            return herd(features[members], count)
        if rng is None:
            raise ValueError("a random choice of exemplars needs a generator: give rng")
        return drawn(len(members), count, rng)


def learnt_classes(kept: Arrays) -> tuple[int, ...]:
    """Labels of the classes in memory, in order."""
    return tuple(sorted(_by_label(kept)))


def herd(features: Features, count: int) -> Ids:
    """Positions of at most `count` of the unit features [n, D], each the one that brings the mean of
    those picked nearest to the mean of all; a shorter list is a prefix of a longer one."""
    mean = features.mean(axis=0)
    picked: list[int] = []
    total = np.zeros_like(mean)
    free = np.ones(len(features), dtype=np.bool_)
    for k in range(1, min(count, len(features)) + 1):
        distance = np.linalg.norm(mean - (features + total) / k, axis=1)
        best = int(np.where(free, distance, np.inf).argmin())
        picked.append(best)
        free[best] = False
        total = total + features[best]
    return np.array(picked, dtype=np.int64)


def drawn(available: int, count: int, rng: np.random.Generator) -> Ids:
    """At most `count` of the positions below `available`, at random; a shorter list is a prefix of a longer
    one from an equal generator."""
    return rng.permutation(available)[:count]


def _name(label: int) -> str:
    return f"{_PREFIX}{label}"


def _by_label(kept: Arrays) -> dict[int, Ids]:
    """The exemplars in the mapping, in its order."""
    labels = {name: name.removeprefix(_PREFIX) for name in kept if name.startswith(_PREFIX)}
    return {int(label): np.asarray(kept[name]) for name, label in labels.items() if label.isdecimal()}
