"""PIP with aligned heads: predictions use rows that were refitted on every class's Gaussian.

Masked training never lets the rows of two tasks compete, so their logits need not be comparable. The server
holds a Gaussian per class anyway; refitting costs no byte on the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pip_flower.methods.pip.alignment import AlignOptions
from pip_flower.data.samples import Samples
from pip_flower.methods.pip.method import PromptedMethod, PromptedOptions
from pip_flower.models import classifier


@dataclass(frozen=True)
class AlignedOptions(PromptedOptions):
    """PIP's options and those of the refit."""

    align: AlignOptions


class AlignedMethod(PromptedMethod):
    """Clients do what PIP's clients do; only prediction differs."""

    options: AlignedOptions

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Prompts and keys, and the refitted rows of the tasks seen."""
        rows = (name for task in range(tasks) for name in aligned_names(task))
        return (*self.structure.used(tasks), *rows)

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """As PIP, with the refitted rows."""
        heads = {
            plain: arrays[aligned]
            for task in range(tasks)
            for plain, aligned in zip(classifier.row_names(task), aligned_names(task), strict=True)
        }
        return super().scores({**arrays, **heads}, samples, tasks)


def aligned_names(task: int) -> tuple[str, str]:
    """Names of a task's refitted rows."""
    return (f"aligned.{task}.weight", f"aligned.{task}.bias")
