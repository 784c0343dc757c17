"""Accuracy of the global model on each task seen, with all classes seen as candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pip_flower.data.samples import Samples
from pip_flower.method.base import Method

# Before the names of a client's metrics that count only the classes it has training samples of.
OWN = "own."


@dataclass(frozen=True)
class Score:
    """How many of a task's test samples were recognised."""

    correct: int
    total: int

    @classmethod
    def of(cls, hits: NDArray[np.bool_]) -> "Score":
        """Of samples that were recognised or not [n]."""
        return cls(int(hits.sum()), len(hits))

    @property
    def accuracy(self) -> float:
        """In percent; 0 where there is nothing to test."""
        return 100.0 * self.correct / self.total if self.total else 0.0


@dataclass(frozen=True)
class ClientScores:
    """What a client recognised of each task and, where its predictions are its own, of its own classes."""

    all: list[Score]
    own: list[Score]


def evaluate(method: Method, arrays: Mapping[str, NDArray[Any]], tests: Sequence[Samples]) -> list[Score]:
    """Scores of the tasks learnt; arguments as those of `recognised`."""
    return [Score.of(hits) for hits in recognised(method, arrays, tests)]


def recognised(
    method: Method, arrays: Mapping[str, NDArray[Any]], tests: Sequence[Samples]
) -> list[NDArray[np.bool_]]:
    """Which samples of each task were recognised; `arrays` are all that prediction needs, `tests[i]` are
    samples of task i, for each task learnt."""
    tasks = len(tests)
    device = method.workspace.device
    state = {name: torch.tensor(value, device=device) for name, value in arrays.items()}
    labels = np.array(method.candidates(tasks))
    found = []
    for samples in tests:
        if not len(samples):
            found.append(np.zeros(0, dtype=np.bool_))
            continue
        columns = method.scores(state, samples, tasks).argmax(dim=1).cpu().numpy()
        found.append(labels[columns] == samples.labels)
    return found
