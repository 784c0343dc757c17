from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from pip_flower.config.compose import Selection
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.views import Views
from pip_flower.method.configuration import load_config

BASE = replace(
    load_config(Selection()).dataset,
    crop_scale=(0.2, 1),
    crop_ratio=(0.75, 1.33),
    flip=True,
    test_resize=40,
    test_interpolation="bicubic",
)
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 50, 60, 3), dtype=np.uint8)
CPU = torch.device("cpu")


def views(config: DatasetConfig = BASE) -> Views:
    return Views(config, 32, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1), CPU)


def test_test_view_is_torchvisions_resize_and_centre_crop() -> None:
    reference = v2.Compose(
        [
            v2.Resize(40, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    expected = reference(torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
    assert torch.equal(views().test(IMAGES), expected)


def test_normalisation_is_the_backbones() -> None:
    plain, normed = views().test(IMAGES), views(replace(BASE, normalize="backbone")).test(IMAGES)
    assert torch.allclose(normed[:, 2], (plain[:, 2] - 0.3) / 0.1, atol=1e-5)


def test_training_views_follow_their_generator_alone() -> None:
    def draw(seed: int) -> torch.Tensor:
        return views().train(IMAGES, torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = draw(3)
    torch.manual_seed(2)
    assert torch.equal(first, draw(3))
    assert not torch.equal(first, draw(4))
    assert first.shape == (5, 3, 32, 32)
    assert 0 <= first.min() <= first.max() <= 1


def test_samples_of_a_batch_are_cropped_on_their_own() -> None:
    same = np.repeat(IMAGES[:1], 4, axis=0)
    drawn = views().train(same, torch.Generator().manual_seed(0))
    assert not torch.equal(drawn[0], drawn[1])


def test_a_full_crop_without_flip_is_the_whole_image() -> None:
    config = replace(BASE, crop_scale=(1, 1), crop_ratio=(1, 1), flip=False, test_resize=0)
    square = IMAGES[:, :50, :50]
    config = replace(config, test_interpolation="bilinear")
    assert torch.equal(
        views(config).train(square, torch.Generator().manual_seed(0)), views(config).test(square)
    )


def test_crops_respect_scale_and_ratio() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        top, left, height, width = views()._crop(50, 60, generator)
        assert 0 <= top <= 50 - height
        assert 0 <= left <= 60 - width
        assert 0.18 <= height * width / 3000 <= 1.0
        assert 0.7 <= width / height <= 1.4


@pytest.mark.parametrize("flip", [True, False])
def test_half_of_the_views_are_flipped_when_asked(flip: bool) -> None:
    config = replace(BASE, crop_scale=(1, 1), crop_ratio=(1, 1), flip=flip)
    square = np.repeat(IMAGES[:1, :50, :50], 200, axis=0)
    drawn = views(config).train(square, torch.Generator().manual_seed(0))
    flipped = (drawn != drawn[0]).flatten(1).any(dim=1).float().mean().item()
    assert (0.3 < flipped < 0.7) if flip else flipped == 0
