"""A ViT small enough for tests of the mathematics, and prompt structures on it."""

from dataclasses import replace
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config, RuntimeConfig
from pip_flower.fidelity import fidelity_named
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.training import PromptTrainer
from pip_flower.models.backbone import Backbone, freeze
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import PromptStructure, make_structure

NO_SHIFT, NO_SCALE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def config(method: str = "pip-dualprompt", overrides: str = "") -> Config:
    """The shipped configuration of a method."""
    return load_config(Selection(method=method, overrides=overrides))


def runtime(**changes: Any) -> RuntimeConfig:
    """One thread of the CPU in float32."""
    return replace(config().runtime, **{"device": "cpu", "precision": "float32", **changes})


def toy_vit(seed: int = 0, **arch: Any) -> VisionTransformer:
    """16 patches of 8 x 8, D = 32, six blocks of two heads; weights large enough to matter."""
    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 6, "num_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vit = VisionTransformer(**(sizes | arch), num_classes=0)
        for value in vit.parameters():
            torch.nn.init.normal_(value, std=0.2)
    return vit


def toy_backbone(seed: int = 0, **arch: Any) -> Backbone:
    """The toy ViT, frozen."""
    return freeze(toy_vit(seed, **arch), NO_SHIFT, NO_SCALE, runtime(), torch.device("cpu"))


def toy_structure(
    method: str = "pip-dualprompt",
    fidelity: str = "paper",
    backbone: Backbone | None = None,
    **changes: Any,
) -> PromptStructure:
    """The prompt structure of a method's shipped configuration, on a toy backbone."""
    options = replace(config(method).method.options.prompt, **changes)
    return make_structure(options, backbone or toy_backbone(), fidelity_named(fidelity), tasks=10)


def toy_state(structure: PromptStructure, tasks: int = 2, classes: int = 4) -> dict[str, Tensor]:
    """Prompts, keys and head after the start of `tasks` tasks; later slots differ from earlier ones."""
    generator = torch.Generator().manual_seed(1)
    state: dict[str, Tensor] = {}
    for task in range(tasks):
        state |= structure.start_task(task, state, generator)
        state |= LinearHead(structure.backbone.dim).start_task(task, classes, generator)
    return {
        name: value + 0.3 * torch.randn(value.shape, generator=generator) for name, value in state.items()
    }


def toy_trainer(structure: PromptStructure, state: dict[str, Tensor], task: int = 1) -> PromptTrainer:
    """A trainer on copies of what `task` trains."""
    names = (*structure.trained(task), *LinearHead(0).names(task))
    leaves = {name: state[name].clone().requires_grad_() for name in names}
    classes = len(state["head.0.bias"])
    context = {name: state[name] for name in structure.context(task)}
    return PromptTrainer(structure, leaves, task, config().training, (task * classes, 0), context)


def images(count: int, seed: int = 0, size: int = 32) -> Tensor:
    """Random pictures [count, 3, size, size]."""
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
