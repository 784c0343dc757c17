"""Pretrain the small ViT that ships with the project, on procedural glyphs only.

The network learns to tell hundreds of invented glyph classes apart, from samples that are drawn
afresh at every step; it never sees a photograph, a digit or anything downloaded. The
handwritten digits of scikit-learn serve only to measure the frozen features afterwards.

    python scripts/pretrain_backbone.py              # train, save, print the figures
    python scripts/pretrain_backbone.py --evaluate   # only the figures of the saved weights
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import load, save
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

import pip_flower.runtime.torchvision_compat  # noqa: F401  (has to precede timm)
from glyphs import make_alphabet, render

# isort: split
from timm.models.vision_transformer import VisionTransformer

OUTPUT = Path(__file__).resolve().parents[1] / "pip_flower" / "models" / "embedded_vit.json"
MAX_BYTES = 3_000_000
THREADS = 2
"""Fixed, because the order of floating-point sums depends on it."""

ARCH: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 4,
    "in_chans": 3,
    "num_classes": 0,
    "embed_dim": 96,
    "depth": 6,
    "num_heads": 3,
    "mlp_ratio": 4,
    "qkv_bias": True,
    "global_pool": "token",
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, apart from the versions of the libraries."""

    seed: int = 0
    steps: int = 3600
    classes: int = 500
    batch: int = 64
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    beta2: float = 0.98
    warmup: float = 0.05
    curriculum: float = 0.4
    label_smoothing: float = 0.1
    logit_scale: float = 16.0
    clip_norm: float = 1.0


def build_vit(seed: int) -> nn.Module:
    """The ViT at timm's default initialisation, without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vit: nn.Module = VisionTransformer(**ARCH)
    return vit.eval()


def build_prepared(seed: int) -> nn.Module:
    """The ViT as pretraining would start from it."""
    vit = build_vit(seed)
    prepare(vit, torch.Generator().manual_seed(seed))
    return vit


def positions(grid: int, width: int) -> Tensor:
    """Sines and cosines of the row and the column of each patch: -> [grid * grid, width]."""
    frequencies = math.pi / grid * torch.logspace(0, 1, width // 4, base=grid)
    phase = (torch.arange(grid) + 0.5)[:, None] * frequencies
    axis = torch.cat([phase.sin(), phase.cos()], dim=1)
    rows = axis[:, None].expand(grid, grid, -1)
    columns = axis[None].expand(grid, grid, -1)
    return torch.cat([rows, columns], dim=-1).reshape(grid * grid, width)


@torch.no_grad()
def prepare(vit: nn.Module, generator: torch.Generator) -> None:
    """Replace timm's initialisation, whose tiny weights and positions learn too slowly here."""
    for module in vit.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
    grid = ARCH["img_size"] // ARCH["patch_size"]
    embedding: Tensor = vit.get_parameter("pos_embed")
    embedding[0, 1:] = 0.5 * positions(grid, ARCH["embed_dim"])


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up followed by a cosine decay to zero."""
    ramp = max(1, round(warmup * steps))
    if step < ramp:
        return (step + 1) / ramp
    return 0.5 * (1 + math.cos(math.pi * (step - ramp) / max(1, steps - ramp)))


def make_optimiser(vit: nn.Module, head: Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    parameters = [*vit.parameters(), head]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim == 2]},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=recipe.learning_rate,
        betas=(0.9, recipe.beta2),
        weight_decay=recipe.weight_decay,
    )


def classify(vit: nn.Module, head: Tensor, images: Tensor, scale: float) -> Tensor:
    """Scaled cosine logits, [B, 3, 32, 32] and [C, D] -> [B, C].

    Cosine rather than a plain linear head, because the features are for nearest-class-mean use.
    """
    return scale * F.linear(F.normalize(vit(images)), F.normalize(head))


def train(recipe: Recipe, console: Console) -> nn.Module:
    """Train a ViT to recognise glyphs; the result depends on the recipe only.

    The glyphs start out clean and reach their full variety after ``recipe.curriculum`` of the
    steps: shown everything at once, the network stays at chance level for very long.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    alphabet = make_alphabet(recipe.classes, generator)
    vit = build_vit(recipe.seed).train()
    prepare(vit, generator)
    head = nn.Parameter(torch.randn(recipe.classes, ARCH["embed_dim"], generator=generator))
    optimiser = make_optimiser(vit, head, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: learning_rate_factor(step, recipe.steps, recipe.warmup)
    )
    accuracy = 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("pretraining", total=recipe.steps)
        for step in range(recipe.steps):
            difficulty = min(1.0, step / (recipe.curriculum * recipe.steps))
            labels = torch.randint(recipe.classes, (recipe.batch,), generator=generator)
            images = render(alphabet, labels, generator, difficulty)
            logits = classify(vit, head, images, recipe.logit_scale)
            loss = F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*vit.parameters(), head], recipe.clip_norm)
            optimiser.step()
            schedule.step()
            accuracy += 0.02 * ((logits.argmax(1) == labels).float().mean().item() - accuracy)
            text = f"loss {loss.item():.3f}  glyph accuracy {accuracy:.1%}"
            progress.update(task, advance=1, description=text)
    return vit.eval()


def write(vit: nn.Module, recipe: Recipe, path: Path) -> None:
    """Store the weights in half precision as one JSON object, all at once or not at all."""
    state = {name: value.half().contiguous() for name, value in vit.state_dict().items()}
    raw: bytes = save(state)
    text = json.dumps(
        {
            "format": 1,
            "arch": ARCH,
            "mean": [0.0, 0.0, 0.0],
            "std": [1.0, 1.0, 1.0],
            "recipe": {**asdict(recipe), "torch": torch.__version__, "threads": THREADS},
            "dtype": "float16",
            "sha256": hashlib.sha256(raw).hexdigest(),
            "data": base64.b64encode(raw).decode("ascii"),
        }
    )
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(text)} bytes of weights exceed the limit of {MAX_BYTES}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as file:
        file.write(text + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def read(path: Path) -> nn.Module:
    """The stored ViT as users get it: half-precision weights cast back to single."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    raw = base64.b64decode(stored["data"])
    if hashlib.sha256(raw).hexdigest() != stored["sha256"]:
        raise ValueError(f"{path} is damaged: its weights do not match their digest")
    vit: nn.Module = VisionTransformer(**stored["arch"])
    vit.load_state_dict({name: value.float() for name, value in load(raw).items()})
    return vit.eval()


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits as the network sees them: [1797, 3, 32, 32] and labels [1797]."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1), torch.tensor(data.target)


@torch.no_grad()
def embed(vit: nn.Module, images: Tensor) -> Tensor:
    """CLS features after the final norm: [N, 3, 32, 32] -> [N, D]."""
    return torch.cat([vit(chunk) for chunk in images.chunk(8)])


def nearest_mean(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Label of the closest class mean: [N, D], [N], [M, D] -> [M]."""
    means = torch.stack([train[labels == c].mean(0) for c in range(int(labels.max()) + 1)])
    return torch.cdist(test, means).argmin(1)


def scores(features: Tensor, labels: Tensor) -> Tensor:
    """Test accuracy of three classifiers over frozen features: [N, D], [N] -> [3].

    They are nearest class mean (Euclidean, then cosine) and logistic regression.
    """
    fit, held = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    unit = F.normalize(features)
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    probe.fit(features[fit].numpy(), labels[fit].numpy())
    guesses = torch.stack(
        [
            nearest_mean(features[fit], labels[fit], features[held]),
            nearest_mean(unit[fit], labels[fit], unit[held]),
            torch.from_numpy(probe.predict(features[held].numpy())),
        ]
    )
    return (guesses == labels[held]).float().mean(1)


def report(path: Path, console: Console) -> None:
    """Print the figures of the stored weights beside those of untrained ones and raw pixels."""
    images, labels = digits()
    vit = read(path)
    table = Table("features", "NCM Euclidean", "NCM cosine", "linear probe", title="digits")

    def add(name: str, *features: Tensor) -> None:
        mean = torch.stack([scores(one, labels) for one in features]).mean(0)
        table.add_row(name, *(f"{value:.1%}" for value in mean.tolist()))

    add("pretrained", embed(vit, images))
    add("timm's init, mean of 3", *(embed(build_vit(seed), images) for seed in range(3)))
    add("our init, mean of 3", *(embed(build_prepared(seed), images) for seed in range(3)))
    add("raw pixels", images[:, 0].flatten(1))
    console.print(table)
    count = sum(parameter.numel() for parameter in vit.parameters())
    console.print(f"{count} parameters, {path.stat().st_size} bytes")


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write (or to measure)")
    parser.add_argument("--evaluate", action="store_true", help="measure the file, do not train")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    console = Console()
    if not options.evaluate:
        recipe = Recipe(seed=options.seed, steps=options.steps)
        write(train(recipe, console), recipe, options.output)
    report(options.output, console)


if __name__ == "__main__":
    main()
