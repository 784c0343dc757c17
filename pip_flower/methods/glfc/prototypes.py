"""What a client shows of a new task: for each class the sample nearest the class mean, disturbed, as the
gradient that it causes in the encoder."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays
from pip_flower.data.samples import Samples
from pip_flower.methods.glfc.compensation import one_hot
from pip_flower.methods.glfc.encoder import GradientEncoder
from pip_flower.methods.networks.model import ModelTraining


class PrototypeGradients:
    """Uses the network of `training` as it was left by a client's training."""

    def __init__(self, training: ModelTraining, encoder: GradientEncoder) -> None:
        self.training = training
        self.encoder = encoder

    def of(self, samples: Samples, task: int, arrays: Arrays, steps: int) -> NDArray[np.float32]:
        """A gradient for each class of `samples` [classes, P], which are of `task`; `arrays` are the trained
        model. A class whose gradient does not tell its label any more is left out."""
        if not len(samples):
            return np.zeros((0, self.encoder.width), dtype=np.float32)
        workspace = self.training.workspace
        labels = np.unique(samples.labels)
        images = self._disturbed(samples.take(self._central(samples)), task, arrays, steps)
        every = workspace.tasks.positions(labels, len(workspace.tasks))
        pairs = zip(images, every.tolist(), strict=True)
        found = [(self.encoder.gradient(image, label), label) for image, label in pairs]
        told = [gradient.cpu() for gradient, label in found if self.encoder.label_of(gradient) == label]
        return torch.stack(told).numpy() if told else np.zeros((0, self.encoder.width), dtype=np.float32)

    def _central(self, samples: Samples) -> NDArray[np.int64]:
        """Rows of the samples nearest the mean feature of their class, in the order of the labels."""
        features = self.training.features(samples).cpu().numpy()
        rows = []
        for label in np.unique(samples.labels):
            members = np.flatnonzero(samples.labels == label)
            distances = np.linalg.norm(features[members] - features[members].mean(axis=0), axis=1)
            rows.append(members[distances.argmin()])
        return np.array(rows)

    def _disturbed(self, samples: Samples, task: int, arrays: Arrays, steps: int) -> Tensor:
        """Images [n, 3, S, S] moved by SGD to where the model is surer of them."""
        training, device = self.training, self.training.workspace.device
        names = training.head.names_of(range(task + 1))
        rows = {name: torch.as_tensor(arrays[name], device=device) for name in names}
        positions = torch.from_numpy(training.workspace.tasks.positions(samples.labels, task + 1)).to(device)
        training.network.eval()
        images = training.views.test(samples.images[:]).requires_grad_()
        optimizer = torch.optim.SGD([images], training.workspace.config.training.learning_rate / 10)
        for _ in range(steps):
            logits = training.head.logits(rows, training.network(images), range(task + 1))
            # A sum over the images, each with its own mean over classes: they do not disturb one another.
            targets = one_hot(positions, logits.shape[1])
            loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1).sum()
            (images.grad,) = torch.autograd.grad(loss, [images])
            optimizer.step()
        return images.detach()
