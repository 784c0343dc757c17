"""The head of a transformer with a token for each task: a block of attention asks the patches for what each
token wants to know, and the classes of a task see its token only."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pip_flower.models.heads.base import Head, State
from pip_flower.models.heads.linear import LinearHead

_EXPANSION = 4


class TaskAttentionHead(Head):
    """`head.block.*`, which all tasks share and task 0 brings, and for each task `head.t.token` [D],
    `head.t.norm.*` [D], `head.t.weight` [classes, D] and `head.t.bias`; features are of patches [B, N, D]."""

    def __init__(self, width: int, heads: int, prefix: str = "head") -> None:
        super().__init__(width, prefix)
        self.heads = heads
        self._classes = LinearHead(width, prefix)

    def block_names(self) -> tuple[str, ...]:
        """The block of attention."""
        return tuple(f"{self.prefix}.block.{name}" for name in self._block())

    def own_names(self, task: int) -> tuple[str, ...]:
        """A task's token and rows."""
        own = (f"{self.prefix}.{task}.{name}" for name in ("token", "norm.weight", "norm.bias"))
        return (*own, *self._classes.names(task))

    def names(self, task: int) -> tuple[str, ...]:
        """A task's own arrays, after those of the block with the first task."""
        return (*(self.block_names() if task == 0 else ()), *self.own_names(task))

    def _block(self) -> dict[str, tuple[int, ...]]:
        width, wide = self.width, _EXPANSION * self.width
        norms = {f"norm{i}.{part}": (width,) for i in (1, 2) for part in ("weight", "bias")}
        asked = {f"{name}.weight": (width, width) for name in ("query", "key", "value", "project")}
        expanded = {"expand.weight": (wide, width), "expand.bias": (wide,)}
        return (
            norms
            | asked
            | {"project.bias": (width,)}
            | expanded
            | {
                "contract.weight": (width, wide),
                "contract.bias": (width,),
            }
        )

    def start_task(self, task: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
        """As timm initialises a transformer."""
        fresh: dict[str, Tensor] = {}
        for name, shape in self._block().items() if task == 0 else ():
            fresh[f"{self.prefix}.block.{name}"] = _started(name, shape, generator)
        for name in ("token", "norm.weight", "norm.bias"):
            fresh[f"{self.prefix}.{task}.{name}"] = _started(name, (self.width,), generator)
        return fresh | self._classes.start_task(task, classes, generator)

    def embeddings(self, state: State, features: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """What each task's token has learnt of an image [B, D], one token at a time."""
        part = {name: state[f"{self.prefix}.block.{name}"] for name in self._block()}

        def normed(values: Tensor, which: str) -> Tensor:
            return _norm(values, part[f"{which}.weight"], part[f"{which}.bias"])

        def keys_and_values(values: Tensor) -> tuple[Tensor, Tensor]:
            return F.linear(values, part["key.weight"]), F.linear(values, part["value.weight"])

        # Those of the patches are the same for every token.
        patches = keys_and_values(normed(features, "norm1"))
        found = []
        for task in tasks:
            token = state[f"{self.prefix}.{task}.token"].expand(len(features), 1, self.width)
            asking = normed(token, "norm1")
            own = keys_and_values(asking)
            keys, values = (torch.cat(pair, dim=1) for pair in zip(own, patches, strict=True))
            answer = self._attended(F.linear(asking, part["query.weight"]), keys, values)
            token = token + F.linear(answer, part["project.weight"], part["project.bias"])
            inner = F.gelu(F.linear(normed(token, "norm2"), part["expand.weight"], part["expand.bias"]))
            token = token + F.linear(inner, part["contract.weight"], part["contract.bias"])
            found.append(token[:, 0])
        return found

    def classified(self, state: State, embeddings: Sequence[Tensor], tasks: Sequence[int]) -> Tensor:
        """Logits [B, classes of `tasks`] from an embedding for each of the tasks."""
        logits = []
        for task, embedding in zip(tasks, embeddings, strict=True):
            weight, bias = (state[f"{self.prefix}.{task}.norm.{part}"] for part in ("weight", "bias"))
            logits.append(self._classes.logits(state, _norm(embedding, weight, bias), [task]))
        return torch.cat(logits, dim=1)

    def logits(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Each task's classes from its own token; what other tasks there are makes no difference."""
        return self.classified(state, self.embeddings(state, features, tasks), tasks)

    def _attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        def by_head(part: Tensor) -> Tensor:
            apart: Tensor = part.unflatten(2, (self.heads, -1))
            return apart.transpose(1, 2)

        found = F.scaled_dot_product_attention(by_head(queries), by_head(keys), by_head(values))
        return found.transpose(1, 2).flatten(2)


def _started(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape)
    if name.startswith("norm"):
        return torch.ones(shape)
    return nn.init.trunc_normal_(torch.empty(shape), std=0.02, generator=generator)


def _norm(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(values, weight.shape, weight, bias)
