"""CCVR: an averaged network whose head the server calibrates on features drawn from class Gaussians.

After M. Luo, F. Chen, D. Hu, Y. Zhang, J. Liang and J. Feng, "No Fear of Heterogeneity: Classifier
Calibration for Federated Learning with Non-IID Data", NeurIPS 2021. Training is FedAvg's. When a task ends,
every client sends mean, covariance and number of its features of each class; their pooled Gaussians are those
of all samples in one place, whoever holds which. The server draws features of all classes seen and refits the
head to them.

There is no official code; how many features are drawn and how the head is fitted are our choices. Predictions
read refitted copies of the rows, the averaged rows go on being trained. Gaussians of earlier tasks stay as
they are while the network moves on: they are exact for the newest task alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.registry import register
from pip_flower.method.workspace import Workspace
from pip_flower.methods.class_gaussians import ClassGaussians, draw
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions
from pip_flower.methods.refit import RefitOptions, joined_rows, refit, split_rows
from pip_flower.models.heads import LinearHead
from pip_flower.models.network import array_names, load_arrays
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class CCVROptions(NetworkOptions):
    """FedAvg's options and those of the calibration."""

    calibration: RefitOptions


class CCVR(NetworkMethod):
    """Beside the model `gaussian.t.*` of each task's classes, and `calibrated.t.*`, which predicts."""

    options: CCVROptions

    def __init__(self, workspace: Workspace, options: CCVROptions) -> None:
        super().__init__(workspace, options)
        width = self.training.head.width
        self.calibrated = LinearHead(width, prefix="calibrated")
        self.gaussians = ClassGaussians(workspace, width, lambda _: self._network, self._features)
        self.conclusion = self.gaussians

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """As FedAvg, with no Gaussians yet."""
        return super().start_task(task, arrays) | self.gaussians.start_task(task)

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Let all classes seen compete; one without a Gaussian keeps its rows as averaged."""
        weight, bias = joined_rows(self.training.head, arrays, task + 1)
        known = self.gaussians.known(arrays, task + 1)
        rows = np.array([row for row, one in enumerate(known) if one.count[0] > 0], dtype=np.int64)
        if len(rows):
            options, generator = self.options.calibration, torch_stream(self.config.seed, "calibration", task)
            features = torch.cat([draw(known[row], options.draws, generator) for row in rows])
            targets = torch.arange(len(rows)).repeat_interleave(options.draws)
            drawn = repeat((features, targets), options.epochs)
            weight[rows], bias[rows] = refit((weight[rows], bias[rows]), drawn, options, generator)
        classes = [len(labels) for labels in self.workspace.tasks.classes[: task + 1]]
        return split_rows(self.calibrated, (weight, bias), classes)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The network, and calibrated rows."""
        return (*self._network, *self.calibrated.names_of(range(tasks)))

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of the calibrated head."""
        load_arrays(self.training.network, arrays)
        return self.calibrated.logits(arrays, self.training.features(samples), range(tasks))

    @property
    def _network(self) -> tuple[str, ...]:
        return tuple(array_names(self.training.network))

    def _features(self, job: ClientJob) -> NDArray[np.floating]:
        load_arrays(self.training.network, job.arrays)
        found: NDArray[np.floating] = self.training.features(job.samples).cpu().numpy()
        return found


register(
    "ccvr",
    title="CCVR: FedAvg with a calibrated head",
    options=CCVROptions,
    method=CCVR,
    sends="class feature means and covariances",
)
