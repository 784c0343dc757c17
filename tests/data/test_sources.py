from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig, KeepConfig
from pip_flower.data.loading import load_data
from pip_flower.method.configuration import load_config

DIGITS = load_config(Selection()).dataset


def test_digits_are_real_scans_with_a_fixed_split() -> None:
    data = load_data(DIGITS)
    assert len(data.train) + len(data.test) == 1797
    assert data.train.images.shape[1:] == (8, 8, 3)
    assert data.train.images.max() == 255
    assert set(data.train.ids) & set(data.test.ids) == set()
    share = np.bincount(data.test.labels) / np.bincount(np.concatenate([data.train.labels, data.test.labels]))
    assert share == pytest.approx(np.full(10, 0.2), abs=0.01)
    assert np.array_equal(load_data(DIGITS).test.ids, data.test.ids)


def npz(path: Path, **changes: object) -> DatasetConfig:
    arrays: dict[str, object] = {
        "x_train": np.zeros((6, 4, 4), np.uint8),
        "y_train": np.array([0, 1, 2] * 2),
        "x_test": np.zeros((3, 4, 4), np.uint8),
        "y_test": np.array([0, 1, 2]),
    }
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})  # type: ignore[arg-type]
    return replace(DIGITS, source="npz", data_dir=str(path), classes=3)


def test_npz_grey_images_become_rgb(tmp_path: Path) -> None:
    data = load_data(npz(tmp_path / "a.npz", class_names=np.array(["cat", "dog", "cow"])))
    assert data.train.images.shape == (6, 4, 4, 3)
    assert data.class_names == ("cat", "dog", "cow")
    assert data.test.ids.tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"y_test": None}, "has no array 'y_test'"),
        ({"x_train": np.zeros((6, 4, 4), np.float32)}, "float32"),
        ({"x_train": np.zeros((5, 4, 4), np.uint8)}, "do not fit its images"),
        ({"y_train": np.array([0, 1, -1] * 2)}, "do not fit its images"),
        ({"y_train": np.array([0, 1, 3] * 2)}, "3 configured, but the data has 4 classes"),
    ],
)
def test_bad_npz_files_are_refused(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_data(npz(tmp_path / "a.npz", **changes))


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    config = npz(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_data(config)
    (tmp_path / "a.npz").unlink()
    with pytest.raises(ConfigError, match="there is no"):
        load_data(config)


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="'imagenot' is not known. Choose from: cifar100, digits, folder"):
        load_data(replace(DIGITS, source="imagenot"))


def test_keep_takes_the_first_classes_and_images_and_their_ids() -> None:
    whole = load_data(DIGITS)
    part = load_data(replace(DIGITS, classes=4, keep=KeepConfig(classes=4, train=3, test=2)))
    assert part.class_names == ("0", "1", "2", "3")
    assert np.bincount(part.train.labels).tolist() == [3, 3, 3, 3]
    assert np.bincount(part.test.labels).tolist() == [2, 2, 2, 2]
    for label in range(4):
        first = whole.train.take(np.flatnonzero(whole.train.labels == label)[:3])
        kept = part.train.take(np.flatnonzero(part.train.labels == label))
        assert np.array_equal(first.images, kept.images)
        assert np.array_equal(first.ids, kept.ids)
