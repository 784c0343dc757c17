"""The procedural alphabet and the reproducibility of the pretraining script."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def glyphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """scripts/ is a folder of programs, not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module("glyphs")
    sys.modules.pop("glyphs", None)


@pytest.fixture
def pretrain(glyphs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The training script without its final measurement, which takes longer than three steps."""
    threads = torch.get_num_threads()
    module = importlib.import_module("pretrain_backbone")
    assert module.render is glyphs.render
    monkeypatch.setattr(module, "report", lambda *_: None)
    yield module
    sys.modules.pop("pretrain_backbone", None)
    torch.set_num_threads(threads)


def draw(glyphs: ModuleType, seed: int, labels: Tensor, difficulty: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    alphabet = glyphs.make_alphabet(20, generator)
    images: Tensor = glyphs.render(alphabet, labels, generator, difficulty)
    return images


def test_same_seed_gives_same_images_bit_for_bit(glyphs: ModuleType) -> None:
    labels = torch.arange(20)
    assert torch.equal(draw(glyphs, 3, labels), draw(glyphs, 3, labels))
    assert not torch.equal(draw(glyphs, 3, labels), draw(glyphs, 4, labels))


def test_global_random_state_is_left_alone(glyphs: ModuleType) -> None:
    before = torch.get_rng_state()
    draw(glyphs, 0, torch.arange(20))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
def test_images_have_shape_and_range(glyphs: ModuleType, difficulty: float) -> None:
    images = draw(glyphs, 1, torch.arange(20).repeat(5), difficulty)
    assert images.shape == (100, 3, 32, 32)
    assert images.dtype == torch.float32
    assert images.isfinite().all()
    assert images.min() >= 0
    assert images.max() <= 1


def test_every_image_shows_ink(glyphs: ModuleType) -> None:
    images = draw(glyphs, 2, torch.arange(20).repeat(5))
    assert images.flatten(1).std(1).min() > 0.02


def test_classes_differ_more_than_their_samples(glyphs: ModuleType) -> None:
    images = draw(glyphs, 5, torch.arange(20).repeat_interleave(8), 0.2).mean(1).flatten(1)
    means = images.view(20, 8, -1).mean(1)
    assert torch.pdist(means).min() > 0.5
    nearest = torch.cdist(images, means).argmin(1)
    assert (nearest == torch.arange(20).repeat_interleave(8)).float().mean() > 0.8


def test_class_count_and_stroke_slots(glyphs: ModuleType) -> None:
    alphabet = glyphs.make_alphabet(200, torch.Generator().manual_seed(0))
    assert len(alphabet) == 200
    strokes = {len(set(slots)) for slots in alphabet.source.tolist()}
    assert strokes == {1, 2, 3, 4}


def test_pretraining_is_reproducible(pretrain: ModuleType, tmp_path: Path) -> None:
    outputs = [tmp_path / "one.json", tmp_path / "two.json"]
    for output in outputs:
        pretrain.main(["--steps", "3", "--output", str(output)])
    first, second = (hashlib.sha256(output.read_bytes()).hexdigest() for output in outputs)
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"]
    features = pretrain.embed(pretrain.read(outputs[0]), torch.rand(8, 3, 32, 32))
    assert features.shape == (8, pretrain.ARCH["embed_dim"])


def test_damaged_weights_are_refused(pretrain: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "weights.json"
    pretrain.write(pretrain.build_vit(0), pretrain.Recipe(), output)
    stored = json.loads(output.read_text())
    output.write_text(json.dumps({**stored, "sha256": "0" * 64}))
    with pytest.raises(ValueError, match="damaged"):
        pretrain.read(output)
