"""BiC: distillation, then a line for the logits of the newest task against their bias.

After Y. Wu, Y. Chen, L. Wang, Y. Ye, Z. Liu, Y. Guo and Y. Fu, "Large Scale Incremental Learning", CVPR
2019. Stage 1 trains the network on new samples and exemplars and distils the corrected logits of the task
before. Stage 2 fits alpha and beta of the new logits, all else fixed, on as many samples of each class that
stage 1 did not see. Federated: the clients of a task's last round fit them to the models that they send,
and the server takes the mean by the number of samples held out. A client whose memory has too few exemplars
to hold one out has no say. The line is fitted by full steps of Adam, whose number bounds it, in place of
the paper's epochs; samples held out are seen without augmentation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import check_counts
from pip_flower.method.round import Round
from pip_flower.methods.networks.training import Step
from pip_flower.methods.rehearsal.distillation import softened
from pip_flower.methods.rehearsal.memory import ExemplarMemory
from pip_flower.methods.rehearsal.method import Material, RehearsalMethod, RehearsalOptions
from pip_flower.models.heads import BiasCorrection, State

# The lines of this round's clients, times the number of samples behind each; and that number.
SUM, COUNT = "bias.sum", "bias.count"


@dataclass(frozen=True)
class BiCOptions(RehearsalOptions):
    """The distillation, what is held out of each class's exemplars, and how the line is fitted."""

    temperature: Annotated[float, Bounds(0.1)]
    held_out: Annotated[float, Bounds(0, 0.5, exclusive_minimum=True)]
    lines: Literal["newest", "every-task"]
    beta_penalty: Annotated[float, Bounds(0)]
    bias_steps: Annotated[int, Bounds(0)]
    bias_rate: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]


class BiC(RehearsalMethod):
    """Beside the model, clients send the line that they fitted (`bias.sum` [2], `bias.count` [1]); the
    lines of finished tasks (`bias.t.alpha`, `bias.t.beta`) stay as they are."""

    options: BiCOptions
    bias = BiasCorrection()

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """A line that changes nothing, too."""
        line = {name: value.numpy() for name, value in self.bias.start_task(task).items()}
        return super().start_task(task, arrays) | line | {SUM: np.zeros(2), COUNT: np.zeros(1)}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The mean of the lines of the last round's clients, and the next task's teacher."""
        added = super().end_task(task, arrays)
        count = arrays[COUNT][0]
        if count:
            mean = (arrays[SUM] / count).astype(np.float32)
            added |= dict(zip(self.bias.names(task), (mean[:1], mean[1:]), strict=True))
        return added

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher, with its lines."""
        return (*super().constant(task), *self._lines(task))

    def returned(self, task: int) -> tuple[str, ...]:
        """The model and the line."""
        return (*super().returned(task), SUM, COUNT)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The model and its lines."""
        return (*super().predicting(tasks), *self._lines(tasks))

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The model by weighted mean; the lines by what was held out."""
        lines: dict[str, Merge] = {SUM: Sum(counts=COUNT, running=False), COUNT: Sum(running=False)}
        return {**super().merging(round_), **lines}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Nobody holds out more than there is."""
        super().inspect(task, reply, samples)
        check_counts(COUNT, reply[COUNT], self.config.validation.max_samples)

    def material(self, job: ClientJob, exemplars: ExemplarMemory) -> Material:
        """What is not held out."""
        return self._split(job, exemplars)[0]

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """a KD_T to the teacher's corrected logits + (1 - a) cross-entropy over all classes seen, a = n /
        (n + m)."""
        logits = step.logits(range(job.task + 1))
        cross_entropy = F.cross_entropy(logits, self.columns(step, job.task))
        if job.task == 0:
            return cross_entropy
        old, new = self.class_counts(job.task)
        lines = {name: torch.as_tensor(job.arrays[name]).to(logits.device) for name in self._lines(job.task)}
        taught = self.corrected(lines, self.teacher.logits(step.images, range(job.task)), job.task)
        share = old / (old + new)
        kept = softened(logits[:, :old], taught, self.options.temperature)
        return share * kept + (1 - share) * cross_entropy

    def findings(
        self,
        job: ClientJob,
        arrays: Arrays,
        memory: Arrays,  # noqa: ARG002
        exemplars: ExemplarMemory,
    ) -> NamedArrays:
        """In the task's last round the line, if there are samples of old and new classes to fit it to."""
        nothing = {SUM: np.zeros(2), COUNT: np.zeros(1)}
        if not job.ends_task:
            return nothing
        held_out = self._split(job, exemplars)[1]
        if not len(held_out.old) or not len(held_out.new):
            return nothing
        samples = held_out.joined()
        device = self.workspace.device
        rows = {
            name: torch.as_tensor(arrays[name], device=device)
            for name in self.training.head.names_of(range(job.task + 1))
        }
        logits = self.training.head.logits(rows, self.training.features(samples), range(job.task + 1))
        columns = self.workspace.tasks.positions(samples.labels, job.task + 1)
        line = fitted_line(
            logits, torch.from_numpy(columns).to(device), self.class_counts(job.task)[0], self.options
        )
        return {SUM: len(samples) * line, COUNT: np.array([float(len(samples))])}

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Corrected logits."""
        return self.corrected(arrays, super().scores(arrays, samples, tasks), tasks)

    def corrected(self, state: State, logits: Tensor, tasks: int) -> Tensor:
        """The logits of the first `tasks` tasks by the line of the newest, or each by its own."""
        known = dict(state)
        if self.options.lines == "newest":
            for task in range(tasks - 1):
                unchanged = self.bias.start_task(task)
                known |= {name: value.to(logits.device) for name, value in unchanged.items()}
        sizes = [len(classes) for classes in self.workspace.tasks.classes[:tasks]]
        return self.bias.corrected(known, logits, sizes, range(tasks))

    def _lines(self, tasks: int) -> tuple[str, ...]:
        return tuple(name for task in range(tasks) for name in self.bias.names(task))

    def _split(self, job: ClientJob, exemplars: ExemplarMemory) -> tuple[Material, Material]:
        """What is trained on, and what is held out: the same in all rounds of a task, of each new class as
        many as of an old one, and never the only sample of a class."""
        present, train = self.workspace.tasks.classes[job.task], self.workspace.data.train
        # The memory as it will be with the new classes: it does not change during the task.
        memory = exemplars.shortened(job.memory, job.samples.labels.tolist())
        parts = exemplars.held_out(memory, self.options.held_out)
        old, held = (exemplars.rehearsed(part, train, excluding=present) for part in parts)
        each = int(np.unique(held.labels, return_counts=True)[1].max(initial=0))
        rng = self.workspace.stream("held-out", job.task, job.partition)
        out = _some_of_each(job.samples, each, rng)
        kept, left_out = (job.samples.take(np.flatnonzero(rows)) for rows in (~out, out))
        return Material(kept, old), Material(left_out, held)


def _some_of_each(samples: Samples, count: int, rng: np.random.Generator) -> np.ndarray:
    """Which samples are among `count` drawn of each class, at least one of which stays."""
    out = np.zeros(len(samples), dtype=np.bool_)
    for label in np.unique(samples.labels):
        rows = np.flatnonzero(samples.labels == label)
        out[rng.permutation(rows)[: min(count, len(rows) - 1)]] = True
    return out


def fitted_line(logits: Tensor, columns: Tensor, old: int, options: BiCOptions) -> np.ndarray:
    """alpha and beta [2] of the logits from column `old` on, from (1, 0) by cross-entropy + penalty
    beta^2."""
    with torch.inference_mode(False), torch.enable_grad():
        fixed = logits.detach().clone()
        line = torch.tensor([1.0, 0.0], device=fixed.device, requires_grad=True)
        optimizer = torch.optim.Adam([line], options.bias_rate)
        for _ in range(options.bias_steps):
            corrected = torch.cat([fixed[:, :old], line[0] * fixed[:, old:] + line[1]], dim=1)
            loss = F.cross_entropy(corrected, columns) + options.beta_penalty * line[1].square()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    found: np.ndarray = line.detach().cpu().double().numpy()
    return found


register(
    "bic",
    title="BiC, federated",
    options=BiCOptions,
    method=BiC,
    keeps="exemplar images",
    sends="two numbers that correct the newest classes' logits",
)
