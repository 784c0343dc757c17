"""Accuracy of the global model on each task seen, with all classes seen as candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pip_flower.data.samples import Samples
from pip_flower.method.base import Method


@dataclass(frozen=True)
class Score:
    """How many of a task's test samples were recognised."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """In percent; 0 where there is nothing to test."""
        return 100.0 * self.correct / self.total if self.total else 0.0


def evaluate(method: Method, arrays: Mapping[str, NDArray[Any]], tests: Sequence[Samples]) -> list[Score]:
    """`arrays` are all that prediction needs; `tests[i]` are samples of task i, for each task learnt."""
    tasks = len(tests)
    device = method.workspace.device
    state = {name: torch.tensor(value, device=device) for name, value in arrays.items()}
    labels = np.array(method.candidates(tasks))
    scores = []
    for samples in tests:
        if not len(samples):
            scores.append(Score(0, 0))
            continue
        columns = method.scores(state, samples, tasks).argmax(dim=1).cpu().numpy()
        scores.append(Score(int((labels[columns] == samples.labels).sum()), len(samples)))
    return scores
