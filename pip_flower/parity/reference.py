"""The reference's toy model in our terms: its backbone, and its parameters under our names."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config
from pip_flower.fidelity import Paper, fidelity_named
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.training import PromptTrainer
from pip_flower.models.backbone import Backbone, freeze
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import DualPromptOptions, L2POptions, PromptStructure, make_structure
from pip_flower.models.weights import load_weights
from pip_flower.parity.fixtures import Array, Fixture
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.devices import prepare_process

BACKBONE = "backbone.npz"


def released_config(method: str, settings: str = "") -> Config:
    """The configuration that reproduces the released code, on one thread of the CPU."""
    overrides = "fidelity=released runtime.device=cpu runtime.precision=float32 runtime.threads=1"
    return load_config(Selection(method=method, overrides=f"{overrides} {settings}"))


def table_of(fixture: Fixture, part: str) -> Prototypes:
    """The prototypes under `part`; ours are sorted by class, and how many samples are behind them is not
    stored."""
    classes = fixture[f"{part}classes"]
    order = np.argsort(classes)
    mean, variance = (fixture[f"{part}{what}"][order].astype(np.float64) for what in ("mu", "var"))
    return Prototypes(classes[order], mean, variance, np.ones(len(classes), dtype=np.int64))


def load_toy(directory: Path, heads: int) -> Backbone:
    """The toy ViT; its sizes are those of the stored arrays, its image a square."""
    stored = Fixture(directory, BACKBONE)
    dim, channels, patch, _ = stored["patch_embed.proj.weight"].shape
    settings = released_config("pip-dualprompt").runtime
    vit = VisionTransformer(
        img_size=math.isqrt(stored["pos_embed"].shape[1] - 1) * patch,
        patch_size=patch,
        in_chans=channels,
        embed_dim=dim,
        depth=len(stored.groups(r"(blocks\.\d+)\.norm1\.weight")),
        num_heads=heads,
        mlp_ratio=stored["blocks.0.mlp.fc1.weight"].shape[0] / dim,
        num_classes=0,
    )
    load_weights(vit, str(directory / BACKBONE))
    zeros, ones = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return freeze(vit, zeros, ones, settings, prepare_process(settings))


class ReferenceModel:
    """Parameters of the reference, by its own names, as the state of one of our prompt structures."""

    def __init__(
        self, backbone: Backbone, params: Mapping[str, Array], class_mask: Array, matching: float
    ) -> None:
        self.fidelity: Paper = fidelity_named("released")
        self.params = dict(params)
        self.class_mask = class_mask
        self.backbone = backbone
        self.method = "pip-dualprompt" if "g_prompt" in params else "pip-l2p"
        self.config = released_config(self.method)
        self.options = dataclasses.replace(self._options(), matching=matching)
        self.structure: PromptStructure = make_structure(
            self.options, backbone, self.fidelity, len(class_mask)
        )
        self.head = LinearHead(backbone.dim)
        self.state = self._ours()

    def trainer(self, task: int, learning_rate: float) -> PromptTrainer:
        """A fresh trainer on fresh copies of what `task` trains."""
        names = (*self.structure.trained(task), *self.head.names(task))
        leaves = {name: self.state[name].clone().requires_grad_() for name in names}
        training = dataclasses.replace(self.config.training, learning_rate=learning_rate)
        sizes = [len(classes) for classes in self.class_mask]
        others = (sum(sizes[:task]), sum(sizes[task + 1 :]))
        return PromptTrainer(self.structure, leaves, task, training, others)

    def targets(self, labels: Array, task: int) -> Tensor:
        """Labels as positions among the classes of `task`."""
        position = {int(label): index for index, label in enumerate(self.class_mask[task])}
        return torch.tensor([position[int(label)] for label in labels])

    def as_reference(self, ours: Mapping[str, Tensor], otherwise: Mapping[str, Tensor]) -> dict[str, Array]:
        """Our arrays under the reference's names; `otherwise` gives those that a task does not train."""
        state = {**otherwise, **ours}
        tasks = range(len(self.class_mask))
        head = {
            "head.weight": torch.cat([state[f"head.{task}.weight"] for task in tasks]),
            "head.bias": torch.cat([state[f"head.{task}.bias"] for task in tasks]),
        }
        order = np.argsort(self.class_mask.reshape(-1))
        named = {name: value.detach().numpy()[order] for name, value in head.items()}
        if "g_prompt" not in self.params:
            pool = {"prompt.prompt": "pool.prompt", "prompt.prompt_key": "pool.key"}
            return {k: state[v].detach().numpy() for k, v in pool.items()} | named
        slots = range(self.params["e_prompt.prompt_key"].shape[0])
        experts = torch.stack([state[f"expert.{slot}"] for slot in slots], dim=2)
        keys = torch.stack([state[f"key.{slot}"] for slot in slots])
        named |= {"e_prompt.prompt": experts.detach().numpy(), "e_prompt.prompt_key": keys.detach().numpy()}
        return named | {"g_prompt": state["general"].detach().numpy()}

    def _ours(self) -> dict[str, Tensor]:
        given = {name: torch.from_numpy(value) for name, value in self.params.items()}
        state: dict[str, Tensor] = {}
        for task, classes in enumerate(self.class_mask):
            state[f"head.{task}.weight"] = given["head.weight"][torch.from_numpy(classes)]
            state[f"head.{task}.bias"] = given["head.bias"][torch.from_numpy(classes)]
        if "g_prompt" not in given:
            state |= {"pool.prompt": given["prompt.prompt"], "pool.key": given["prompt.prompt_key"]}
            return state
        state["general"] = given["g_prompt"]
        for slot, key in enumerate(given["e_prompt.prompt_key"]):
            state |= {f"expert.{slot}": given["e_prompt.prompt"][:, :, slot], f"key.{slot}": key}
        return state

    def _options(self) -> DualPromptOptions | L2POptions:
        """The configured options with the lengths of the stored prompts."""
        options: DualPromptOptions | L2POptions = self.config.method.options.prompt
        if isinstance(options, DualPromptOptions):
            return dataclasses.replace(
                options,
                general_length=self.params["g_prompt"].shape[2],
                expert_length=self.params["e_prompt.prompt"].shape[3],
            )
        pool, length, _ = self.params["prompt.prompt"].shape
        return dataclasses.replace(options, pool=pool, length=length)
