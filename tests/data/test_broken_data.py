"""What broken data get: a message that names the file and the remedy, or images all the same.

The table in docs/data.md lists the same cases.
"""

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.loading import load_data
from pip_flower.data.samples import ImageData
from pip_flower.data.sources.pictures import decode
from pip_flower.method.configuration import load_config
from pip_flower.method.workspace import Workspace
from support import miniatures
from support.miniatures import WNIDS, encoded, npz, pixels, write_files, write_tar, write_zip

NOISE = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
ONE = f"{WNIDS[1]}/{WNIDS[1]}_3.png"


def config(dataset: str, path: Path, **changes: Any) -> DatasetConfig:
    chosen = load_config(
        Selection(dataset=dataset, overrides="schedule.tasks=1 dataset.classes=10 backbone.name=embedded")
    ).dataset
    return replace(chosen, data_dir=str(path), **{"classes": 3, "stored_size": 0, **changes})


def read(dataset: str, path: Path, **changes: Any) -> ImageData:
    return load_data(config(dataset, path, **changes), path.parent / "cache")


def folder(tmp_path: Path, **changed: bytes) -> Path:
    """A folder data set with one file replaced."""
    return write_files(tmp_path / "own", miniatures.class_folders() | {ONE: changed["one"]})


def cut_zip(tmp: Path) -> ImageData:
    path = write_zip(tmp / "tiny.zip", miniatures.tiny_imagenet())
    os.truncate(path, path.stat().st_size // 2)
    return read("tinyimagenet", path)


def cut_tar(tmp: Path) -> ImageData:
    path = write_tar(tmp / "cifar-100-python.tar.gz", miniatures.cifar100())
    os.truncate(path, path.stat().st_size // 2)
    return read("cifar100", path)


def flipped_byte_in_zip(tmp: Path) -> ImageData:
    path = write_zip(tmp / "tiny.zip", miniatures.tiny_imagenet())
    raw = bytearray(path.read_bytes())
    start = raw.index(f"{WNIDS[1]}_2.JPEG".encode())
    raw[start + 200] ^= 0xFF
    path.write_bytes(raw)
    return read("tinyimagenet", path)


def hostile_pickle(tmp: Path) -> ImageData:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch owned",)

    files = miniatures.cifar100() | {"cifar-100-python/train": pickle.dumps({"data": Hostile()})}
    return read("cifar100", write_files(tmp / "c", files))


def cut_pickle(tmp: Path) -> ImageData:
    files = miniatures.cifar100()
    files["cifar-100-python/test"] = files["cifar-100-python/test"][:500]
    return read("cifar100", write_files(tmp / "c", files))


def labels_out_of_range(tmp: Path) -> ImageData:
    files = miniatures.cifar100()
    files["cifar-100-python/meta"] = miniatures.cifar100(2)["cifar-100-python/meta"]
    return read("cifar100", write_files(tmp / "c", files), classes=2)


def bad_annotation(tmp: Path) -> ImageData:
    files = miniatures.tiny_imagenet()
    files["tiny-imagenet-200/val/val_annotations.txt"] += b"val_9.JPEG n01443537\n"
    return read("tinyimagenet", write_files(tmp / "t", files))


def listed_but_absent(tmp: Path) -> ImageData:
    files = miniatures.mini_csv()
    del files[f"mini/images/{WNIDS[0]}{1:08d}.jpg"]
    return read("miniimagenet", write_files(tmp / "m", files))


def different_sizes(tmp: Path) -> ImageData:
    return read("folder", folder(tmp, one=encoded(pixels(1, 1, 12), "PNG")))


def unknown_class(tmp: Path) -> ImageData:
    path = write_files(tmp / "own", miniatures.class_folders())
    return read("folder", path, class_names=(WNIDS[0], WNIDS[1], "cat"))


def empty_class_folder(tmp: Path) -> ImageData:
    files = miniatures.class_folders("train/") | miniatures.class_folders("test/")
    path = write_files(tmp / "own", files)
    (path / "train" / "zebra").mkdir()
    return read("folder", path)


def empty_class_folder_in_zip(tmp: Path) -> ImageData:
    return read("folder", write_zip(tmp / "own.zip", miniatures.class_folders("own/") | {"own/zebra/": b""}))


def many_in_compressed_tar(tmp: Path) -> ImageData:
    return read("imagenet-r", write_tar(tmp / "r.tar.gz", miniatures.class_folders("r/", count=20)))


def depth_map(tmp: Path) -> ImageData:
    buffer = io.BytesIO()
    Image.fromarray(np.ones((8, 8), np.float32)).save(buffer, "TIFF")
    own = write_files(tmp / "own", {**miniatures.class_folders(), f"{WNIDS[0]}/depth.tif": buffer.getvalue()})
    return read("folder", own)


REFUSED: dict[str, tuple[Callable[[Path], ImageData], str]] = {
    "truncated zip": (cut_zip, "tiny.zip' is not a readable archive.*Download or copy the file again"),
    "truncated tar.gz": (cut_tar, "cifar-100-python.tar.gz' is not a readable archive"),
    "flipped byte in a zip": (
        flipped_byte_in_zip,
        f"1 image cannot be read: .*{WNIDS[1]}_2.JPEG: Bad CRC-32",
    ),
    "pickle that calls functions": (hostile_pickle, "asks for (posix|os|nt).system, which no array needs"),
    "truncated pickle": (cut_pickle, "the pickle 'cifar-100-python/test' cannot be read"),
    "labels out of range": (labels_out_of_range, "labels from 0 to 2, but there are 2 classes"),
    "labels that do not fit": (
        lambda tmp: read("npz", npz(tmp / "a.npz", y_test=np.array([0, 1]))),
        "labels in 'a.npz' do not fit its images",
    ),
    "floating-point images": (
        lambda tmp: read("npz", npz(tmp / "a.npz", x_train=np.zeros((6, 8, 8, 3)))),
        "images in 'a.npz' are float64",
    ),
    "unreadable JPEG": (
        lambda tmp: read("folder", folder(tmp, one=NOISE[: len(NOISE) // 2])),
        f"1 image cannot be read: {ONE}: .*truncated.*dataset.on_corrupt=skip",
    ),
    "text called .png": (lambda tmp: read("folder", folder(tmp, one=b"hello")), f"{ONE}: not an image"),
    "empty file": (lambda tmp: read("folder", folder(tmp, one=b"")), f"{ONE}: not an image"),
    "floating-point TIFF": (depth_map, "depth.tif: its pixels are of mode 'F'"),
    "images of several sizes": (
        different_sizes,
        "is 12 x 12, those before it 8 x 8. Give the side",
    ),
    "annotation without a class": (
        bad_annotation,
        "line 7 of .*annotations.txt' is not a file and a class",
    ),
    "images of the CSV not there": (
        listed_but_absent,
        "1 images of the CSV files are not there",
    ),
    "a class that is not in the list": (unknown_class, "classes that are not among them: 'n01641577'"),
    "a class folder without images": (empty_class_folder, "without a single image: 'train/zebra'"),
    "an empty folder in an archive": (empty_class_folder_in_zip, "without a single image: 'own/zebra'"),
    "many files in a compressed tar": (
        many_in_compressed_tar,
        "60 files in one compressed stream",
    ),
    "an empty directory": (
        lambda tmp: read("folder", write_files(tmp / "own", {"readme.txt": b""})),
        "holds no such data set. Give a directory of class folders",
    ),
    "no such path": (
        lambda tmp: read("tinyimagenet", tmp / "nowhere"),
        "there is no .*Give tiny-imagenet-200.zip",
    ),
    "another number of classes": (
        lambda tmp: read("npz", npz(tmp / "a.npz"), classes=5),
        "5 configured, but the data has 3 classes. Set dataset.classes=3",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_the_reason_and_the_remedy(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt, told = REFUSED[kind]
    with pytest.raises(ConfigError, match=told):
        attempt(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_unreadable_images_are_skipped_by_name_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = read("folder", folder(tmp_path, one=b"hello"), on_corrupt="skip")
    assert len(data.train) + len(data.test) == 20
    assert data.skipped == (f"{ONE}: not an image",)
    assert f"skipped {ONE}: not an image" in capsys.readouterr().err
    # Whoever opens the store later is told as well.
    assert read("folder", tmp_path / "own", on_corrupt="skip").skipped == data.skipped


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "LA"), ("PNG", "RGBA"), ("GIF", "P")],
)
def test_other_colour_modes_are_read_as_colour(tmp_path: Path, kind: str, mode: str) -> None:
    grey = np.full((8, 8, 3), 102, np.uint8)
    data = read("folder", folder(tmp_path, one=encoded(grey, kind, mode)))
    images = np.concatenate([data.train.images[:], data.test.images[:]])
    assert min(np.abs(image.astype(int) - 102).max() for image in images) <= 4


def test_sixteen_bits_and_transparency_keep_what_people_see(tmp_path: Path) -> None:
    deep, clear = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.full((8, 8), 90 << 8, np.uint16)).save(deep, "PNG")
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(clear, "PNG")
    for content, seen in ((deep, 90), (clear, 255)):
        assert np.abs(decode(content.getvalue(), 0).astype(int) - seen).max() == 0


def test_photographs_are_turned_upright() -> None:
    sideways = np.zeros((8, 12, 3), np.uint8)
    sideways[:, :4] = 255
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # the camera was held on its side
    Image.fromarray(sideways).save(buffer, "PNG", exif=exif)
    upright = decode(buffer.getvalue(), 0)
    assert upright.shape == (12, 8, 3)
    assert upright[:4].min() == 255


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_class_without_images_is_refused(tmp_path: Path, part: str) -> None:
    name = {"training": "y_train", "test": "y_test"}[part]
    labels = {"training": np.array([0, 1] * 3), "test": np.array([0, 1, 1])}[part]
    path = npz(tmp_path / "a.npz", **{name: labels, "class_names": np.array(["cat", "dog", "cow"])})
    overrides = "backbone.name=embedded schedule.tasks=1 schedule.rounds=1"
    workspace = Workspace(load_config(Selection(dataset="npz", data_dir=str(path), overrides=overrides)))
    with pytest.raises(ConfigError, match=f"1 of 3 classes have no {part} images: 'cow'"):
        workspace.check_data()
