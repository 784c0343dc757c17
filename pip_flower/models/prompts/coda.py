"""CODA-Prompt: prefixes that are weighted sums of components, with the weights of each sample's own query.

After J. S. Smith, L. Karlinsky, V. Gutta, P. Cascante-Bonilla, D. Kim, A. Arbelle, R. Panda, R. Feris and
Z. Kira, "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free Continual Learning",
CVPR 2023. Every task adds components of its own and trains these alone; those of earlier tasks go on
contributing. A pool of 100 for ten tasks is ten components for each, so that the number of tasks need not be
known. Components start orthogonal to all that there are, as in the authors' code, and are kept so by the
paper's penalty, which is the mean square here, whatever the number of components.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.fidelity import Paper
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import AttachedPrompts
from pip_flower.models.prompts.base import PromptedFeatures, PromptStructure, State
from pip_flower.models.prompts.prefixes import by_block, check_depth, check_distinct, prefix_shape


@dataclass(frozen=True)
class CODAOptions:
    """Components of a task, their length (as many keys as values), their blocks, whether each attends to
    parts of the query, and the weight of the penalty on components that are not orthogonal."""

    structure: Literal["coda"]
    components: Annotated[int, Bounds(1)]
    length: Annotated[int, Bounds(1)]
    blocks: Annotated[tuple[int, ...], Bounds(0)]
    attention: bool
    orthogonality: Annotated[float, Bounds(0)]

    def check(self) -> None:
        """Refuse a second prefix for a block."""
        check_distinct({"blocks": self.blocks})


class CODA(PromptStructure):
    """`coda.t.prompt` [n, blocks, 2, length, heads, D / heads], `coda.t.key` and `coda.t.attention`
    [n, blocks, D]: the n components of task t; the last is left out where queries are taken as they are."""

    def __init__(self, options: CODAOptions, backbone: Backbone, fidelity: Paper) -> None:
        super().__init__(backbone, fidelity, matching=0.0, selection="sample")
        self.options = options
        self.kinds = ("prompt", "key", "attention")[: 3 if options.attention else 2]
        check_depth({"blocks": options.blocks}, backbone.depth)

    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """Components that are orthogonal to one another and to the earlier ones, block by block."""
        o, added = self.options, {}
        for kind in self.kinds:
            shape: tuple[int, ...] = (self.backbone.dim,)
            if kind == "prompt":
                shape = prefix_shape(self.backbone, (0,), o.length)[1:]
            width = torch.Size(shape).numel()
            known = [state[f"coda.{earlier}.{kind}"].flatten(2) for earlier in range(task)]
            earlier = torch.cat([torch.zeros(0, len(o.blocks), width), *known])
            fresh = torch.zeros(o.components, len(o.blocks), width)
            for block in range(len(o.blocks)):
                fresh[:, block] = orthogonal_rows(earlier[:, block], o.components, generator)
            added[f"coda.{task}.{kind}"] = fresh.reshape(o.components, len(o.blocks), *shape)
        return added

    def trained(self, task: int) -> tuple[str, ...]:
        """The task's own components."""
        return tuple(f"coda.{task}.{kind}" for kind in self.kinds)

    def context(self, task: int) -> tuple[str, ...]:
        """Those of earlier tasks."""
        return self.used(task)

    def used(self, tasks: int) -> tuple[str, ...]:
        """The components of all tasks seen."""
        return tuple(name for task in range(tasks) for name in self.trained(task))

    def needs_query(self, task: int | None) -> bool:  # noqa: ARG002
        """Always: it weighs the components."""
        return True

    def forward(
        self, state: State, images: Tensor, query: Tensor | None, *, task: int | None, tasks: int
    ) -> PromptedFeatures:
        """CLS with the weighted sum of the components; a task's gradient reaches its own alone."""
        if query is None:
            raise ValueError("the weights of components need the query")
        prompt, *keys = self._components(state, task, tasks)
        weights = component_weights(query, *keys)
        stored = torch.einsum("bln,nlkshd->blkshd", weights, prompt)
        prefixes = by_block(stored, self.options.blocks)
        features = self.backbone.encode(images, AttachedPrompts(prefixes)).squeeze(1)
        return PromptedFeatures(features, torch.zeros((), device=features.device))

    def penalty(self, state: State, task: int) -> Tensor | float:
        """How far the components of all tasks up to this one are from orthonormal, summed over blocks."""
        if not self.options.orthogonality:
            return 0.0
        parts = self._components(state, task, task + 1)
        apart = torch.stack([from_orthonormal(part.flatten(2)) for part in parts])
        return self.options.orthogonality * apart.sum()

    def _components(self, state: State, task: int | None, tasks: int) -> list[Tensor]:
        """Prompts, keys and attentions of the components that count."""
        last = tasks - 1 if task is None else task

        def of(kind: str) -> list[Tensor]:
            stored = [state[f"coda.{each}.{kind}"] for each in range(last + 1)]
            return [*(value.detach() for value in stored[:-1]), stored[-1]]

        return [torch.cat(of(kind)) for kind in self.kinds]


def component_weights(query: Tensor, key: Tensor, attention: Tensor | None = None) -> Tensor:
    """cos(q * A, K) for queries [B, D], keys and attentions [n, blocks, D] -> [B, blocks, n]."""
    attention = torch.ones_like(key) if attention is None else attention
    product = torch.einsum("bd,nld->bln", query, attention * key)
    attended = torch.einsum("bd,nld->bln", query.square(), attention.square()).clamp(min=1e-12).sqrt()
    length: Tensor = key.norm(dim=2).T.clamp(min=1e-6)
    return product / (attended * length)


def from_orthonormal(components: Tensor) -> Tensor:
    """Mean square of B B' - I over pairs of components [n, blocks, width], summed over blocks."""
    by_block = components.transpose(0, 1)
    gram = by_block @ by_block.transpose(1, 2)
    return (gram - torch.eye(gram.shape[-1], device=gram.device)).square().mean(dim=(1, 2)).sum()


def orthogonal_rows(earlier: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` random rows of length 1, orthogonal to one another and to `earlier` [m, width] as far as
    there are directions left; rows beyond that are merely random."""
    known, width = earlier.double(), earlier.shape[1]
    drawn = torch.randn(count, width, generator=generator, dtype=torch.float64)
    rows: Tensor = drawn / drawn.norm(dim=1, keepdim=True)
    room = min(count, max(0, width - len(known)))
    free, basis = drawn[:room].T, torch.linalg.qr(known.T).Q
    for _ in range(2):  # A second time for what rounding left.
        free = free - basis @ (basis.T @ free)
    found, triangle = torch.linalg.qr(free)
    rows[:room] = (found * triangle.diagonal().sign()).T
    return rows.float()
