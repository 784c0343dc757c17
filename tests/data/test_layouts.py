"""The layouts that people really have are read, archived or not."""

import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pip_flower.config.compose import Selection
from pip_flower.config.sections import DatasetConfig, KeepConfig
from pip_flower.data.loading import load_data
from pip_flower.data.samples import ImageData
from pip_flower.method.configuration import load_config
from support import miniatures
from support.miniatures import TEST, TRAIN, WNIDS, pixels, write_files, write_tar, write_zip

GOLDFISH = "train/n01443537/images/n01443537_0.JPEG"


def config(dataset: str, path: Path, classes: int = 3, **changes: object) -> DatasetConfig:
    chosen = load_config(
        Selection(dataset=dataset, overrides="schedule.tasks=1 dataset.classes=10 backbone.name=embedded")
    ).dataset
    return replace(chosen, data_dir=str(path), classes=classes, **changes)  # type: ignore[arg-type]


def read(dataset: str, path: Path, **changes: object) -> ImageData:
    return load_data(config(dataset, path, **changes), path.parent / "cache")


def assert_whole(data: ImageData, names: list[str], order: list[int], train: int, test: int) -> None:
    """Every class has its own images: `order[label]` is the class that the miniature calls so."""
    assert list(data.class_names) == names
    assert np.bincount(data.train.labels).tolist() == [train] * len(names)
    assert np.bincount(data.test.labels).tolist() == [test] * len(names)
    assert len({*data.train.ids.tolist(), *data.test.ids.tolist()}) == len(names) * (train + test)
    for samples in (data.train, data.test):
        for row, label in enumerate(samples.labels):
            reds = np.asarray(samples.images[row])[..., 0].astype(int)
            assert np.abs(reds - int(pixels(order[label], 0)[0, 0, 0])).max() <= 6


def test_tiny_imagenet_zipped_and_unpacked_is_the_same(tmp_path: Path) -> None:
    files = miniatures.tiny_imagenet()
    zipped = read("tinyimagenet", write_zip(tmp_path / "tiny-imagenet-200.zip", files))
    unpacked = write_files(tmp_path / "unpacked", files)
    # Classes come in the order of wnids.txt, which is not the alphabet's here.
    names = [f"thing {wnid}, word" for wnid in WNIDS[:3][::-1]]
    assert_whole(zipped, names, [2, 1, 0], TRAIN, TEST)
    for path in (unpacked, unpacked / "tiny-imagenet-200"):
        other = read("tinyimagenet", path)
        assert np.array_equal(other.train.images, zipped.train.images)
        assert np.array_equal(other.test.labels, zipped.test.labels)


def test_tiny_imagenet_with_validation_images_sorted_into_folders(tmp_path: Path) -> None:
    files = miniatures.tiny_imagenet()
    listed = files.pop("tiny-imagenet-200/val/val_annotations.txt").decode().splitlines()
    for line in listed:
        name, wnid = line.split("\t")[:2]
        moved = files.pop(f"tiny-imagenet-200/val/images/{name}")
        files[f"tiny-imagenet-200/val/{wnid}/images/{name}"] = moved
    data = read("tinyimagenet", write_files(tmp_path / "t", files))
    assert_whole(data, [f"thing {wnid}, word" for wnid in WNIDS[:3][::-1]], [2, 1, 0], TRAIN, TEST)


def test_cifar_pickles_of_python_2_in_archive_beside_it_and_unpacked(tmp_path: Path) -> None:
    files = miniatures.cifar100()
    (tmp_path / "download").mkdir()
    archive = write_tar(tmp_path / "download" / "cifar-100-python.tar.gz", files)
    unpacked = write_files(tmp_path / "unpacked", files)
    beside = tmp_path / "several"
    beside.mkdir()
    write_tar(beside / archive.name, files)
    write_tar(beside / "imagenet-r.tar.gz", {"n01443537/a.jpg": b""})
    for path in (archive, archive.parent, beside, unpacked, unpacked / "cifar-100-python"):
        data = read("cifar100", path)
        assert_whole(data, list(WNIDS[:3]), [0, 1, 2], TRAIN, TEST)
        assert np.array_equal(data.train.images[0], pixels(0, 0, 32))


@pytest.mark.parametrize("layout", ["csv", "folders", "pooled folders", "cache", "metaoptnet"])
def test_three_layouts_of_mini_imagenet(tmp_path: Path, layout: str) -> None:
    parts = ("train/", "val/", "test/")
    files = {
        "csv": miniatures.mini_csv,
        "folders": lambda: {
            f"{parts[WNIDS.index(name.split('/')[0])]}{name}": content
            for name, content in miniatures.class_folders().items()
        },
        "pooled folders": miniatures.class_folders,
        "cache": miniatures.mini_pickles,
        "metaoptnet": lambda: miniatures.mini_pickles(kind="metaoptnet"),
    }[layout]()
    for path in (write_files(tmp_path / "files", files), write_zip(tmp_path / "mini.zip", files)):
        data = read("miniimagenet", path, stored_size=8, test_fraction=2 / 7)
        assert_whole(data, list(WNIDS[:3]), [0, 1, 2], TRAIN, TEST)


def test_mini_imagenet_whose_folders_share_their_classes_keeps_its_split(tmp_path: Path) -> None:
    files = miniatures.class_folders("train/", count=4) | miniatures.class_folders("test/", count=1)
    data = read("miniimagenet", write_files(tmp_path / "m", files), stored_size=8)
    assert_whole(data, list(WNIDS[:3]), [0, 1, 2], 4, 1)


def test_imagenet_r_has_names_and_one_size(tmp_path: Path) -> None:
    data = read("imagenet-r", write_tar(tmp_path / "imagenet-r.tar", miniatures.imagenet_r()), stored_size=16)
    assert data.class_names == ("rendered_0", "rendered_1", "rendered_2")
    assert data.train.images[:].shape[1:] == (16, 16, 3)
    assert len(data.train) + len(data.test) == 3 * (TRAIN + TEST) + 1
    assert np.bincount(data.test.labels).tolist() == [2, 1, 1]


@pytest.mark.parametrize("test", ["test", "val", "validation"])
def test_a_folder_with_a_split(tmp_path: Path, test: str) -> None:
    files = miniatures.class_folders("train/", count=4) | miniatures.class_folders(f"{test}/", count=2)
    files |= {".DS_Store": b"", "train/notes.txt": b"", f"train/{WNIDS[0]}/._n.png": b"not data"}
    data = read("folder", write_files(tmp_path / "own", files), stored_size=0)
    assert_whole(data, list(WNIDS[:3]), [0, 1, 2], 4, 2)


def test_a_folder_without_a_split_is_split_by_file_name(tmp_path: Path) -> None:
    root = write_files(tmp_path / "own", miniatures.class_folders(count=10))
    first = read("folder", root, stored_size=0)
    assert_whole(first, list(WNIDS[:3]), [0, 1, 2], 8, 2)
    write_files(root, miniatures.class_folders(count=12))
    more = read("folder", root, stored_size=0)
    moved = {image.tobytes() for image in first.test.images[:]} - {
        image.tobytes() for image in more.test.images[:]
    }
    assert len(moved) <= 2
    assert len(more.train) + len(more.test) == 36


def test_images_are_cut_to_squares_of_the_stored_size(tmp_path: Path) -> None:
    left, middle = np.zeros((20, 10, 3), np.uint8), np.full((20, 20, 3), 200, np.uint8)
    wide = np.concatenate([left, middle, left], axis=1)
    files = {f"{c}/{i}.png": miniatures.encoded(wide, "PNG") for c in "ab" for i in range(2)}
    data = read("folder", write_files(tmp_path / "own", files), classes=2, stored_size=10)
    assert data.train.images[:].shape == (2, 10, 10, 3)
    assert data.train.images[0].min() > 150


def test_class_names_give_labels_whichever_classes_are_there(tmp_path: Path) -> None:
    own = {n: c for n, c in miniatures.class_folders(count=3).items() if not n.startswith(WNIDS[1])}
    names = (WNIDS[2], WNIDS[1], WNIDS[0])
    data = read("folder", write_files(tmp_path / "own", own), stored_size=0, class_names=names)
    assert data.class_names == names
    assert set(data.train.labels.tolist()) == {0, 2}
    red = data.train.images[int(np.flatnonzero(data.train.labels == 0)[0])][0, 0, 0]
    assert red == pixels(2, 0)[0, 0, 0]


def test_keep_decodes_only_what_is_kept(tmp_path: Path) -> None:
    files = miniatures.tiny_imagenet()
    broken = f"tiny-imagenet-200/train/{WNIDS[0]}/images/{WNIDS[0]}_4.JPEG"
    files[broken] = b"never read"
    path = write_zip(tmp_path / "t.zip", files)
    data = read("tinyimagenet", path, classes=2, keep=KeepConfig(classes=2, train=3, test=1))
    assert np.bincount(data.train.labels).tolist() == [3, 3]
    assert len(data.test) == 2


@pytest.mark.skipif("PIP_FLOWER_ASSETS" not in os.environ, reason="needs real images")
def test_real_tiny_imagenet_images(tmp_path: Path) -> None:
    path = Path(os.environ["PIP_FLOWER_ASSETS"]) / "tiny-imagenet-100.zip"
    kept = KeepConfig(classes=4, train=30, test=10)
    data = load_data(config("tinyimagenet", path, classes=4, keep=kept), tmp_path)
    assert data.class_names[0] == "goldfish, Carassius auratus"
    assert data.train.images[:].shape == (120, 64, 64, 3)
    assert len(data.test) == 40
    with zipfile.ZipFile(path) as archive, archive.open(f"tiny-imagenet-200/{GOLDFISH}") as file:
        assert np.array_equal(data.train.images[0], np.asarray(Image.open(file).convert("RGB")))
