"""Miniature data sets in the layouts that people have, written by the tests."""

import csv
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
WNIDS = ("n01443537", "n01629819", "n01641577", "n01644900")
TRAIN, TEST = 5, 2


def pixels(label: int, number: int, side: int = 8) -> Pixels:
    """A picture that no other class and number has: flat, so that JPEG leaves it nearly as it is."""
    colour = np.array([40 * label + 20, 12 * number % 240 + 10, 200 - 30 * label], np.uint8)
    return np.broadcast_to(colour, (side, side, 3)).copy()


def encoded(image: Pixels, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """The picture as a file."""
    buffer = io.BytesIO()
    options = {"quality": 95} if kind == "JPEG" else {}
    Image.fromarray(image).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def tiny_imagenet(classes: int = 3, side: int = 8) -> dict[str, bytes]:
    """TinyImageNet-200 as published, with test images that have no labels; two wnids are not there."""
    root = "tiny-imagenet-200/"
    listed = ("n99999999", *WNIDS[:classes][::-1], "n88888888")
    files = {
        f"{root}wnids.txt": "\n".join(listed).encode(),
        f"{root}words.txt": b"".join(f"{wnid}\tthing {wnid}, word\n".encode() for wnid in WNIDS),
    }
    lines = []
    for label, wnid in enumerate(WNIDS[:classes]):
        files[f"{root}train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
        for number in range(TRAIN):
            files[f"{root}train/{wnid}/images/{wnid}_{number}.JPEG"] = encoded(pixels(label, number, side))
        for number in range(TEST):
            name = f"val_{number * classes + label}.JPEG"
            files[f"{root}val/images/{name}"] = encoded(pixels(label, 10 + number, side))
            lines.append(f"{name}\t{wnid}\t0\t0\t7\t7\n")
    files[f"{root}val/val_annotations.txt"] = "".join(lines).encode()
    files[f"{root}test/images/test_0.JPEG"] = encoded(pixels(0, 0, side))
    return files


def class_folders(prefix: str = "", classes: int = 3, count: int = TRAIN + TEST) -> dict[str, bytes]:
    """Class folders of PNG files."""
    return {
        f"{prefix}{wnid}/{wnid}_{number}.png": encoded(pixels(label, number), "PNG")
        for label, wnid in enumerate(WNIDS[:classes])
        for number in range(count)
    }


def imagenet_r(classes: int = 3) -> dict[str, bytes]:
    """ImageNet-R as published; images of different sizes."""
    files = class_folders("imagenet-r/", classes)
    wide = np.concatenate([pixels(0, 0), pixels(0, 0)], axis=1)
    files[f"imagenet-r/{WNIDS[0]}/art_wide.jpg"] = encoded(wide)
    words = "\n".join(f"{wnid} rendered_{label}" for label, wnid in enumerate(WNIDS))
    files["imagenet-r/README.txt"] = f"ImageNet-R\n\nclasses:\n{words}\n".encode()
    return files


def mini_csv(classes: int = 3) -> dict[str, bytes]:
    """MiniImageNet as three CSV files, each with its own classes, beside one folder of images."""
    files: dict[str, bytes] = {}
    for label, (wnid, table) in enumerate(zip(WNIDS[:classes], ("train", "val", "test"), strict=False)):
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["filename", "label"])
        for number in range(TRAIN + TEST):
            name = f"{wnid}{number:08d}.jpg"
            writer.writerow([name, wnid])
            files[f"mini/images/{name}"] = encoded(pixels(label, number))
        files[f"mini/{table}.csv"] = text.getvalue().encode()
    return files


def mini_pickles(classes: int = 3, kind: str = "cache") -> dict[str, bytes]:
    """MiniImageNet as three pickles, of either kind in use."""
    files = {}
    for label, part in enumerate(("train", "val", "test")[:classes]):
        images = np.stack([pixels(label, number) for number in range(TRAIN + TEST)])
        rows = list(range(len(images)))
        if kind == "cache":
            stored: dict[str, Any] = {"image_data": images, "class_dict": {WNIDS[label]: rows}}
            files[f"mini-imagenet-cache-{part}.pkl"] = pickle.dumps(stored)
        else:
            phase = "train_phase_train" if part == "train" else part
            stored = {"data": images, "labels": [label] * len(rows), "catname2label": {WNIDS[label]: label}}
            files[f"miniImageNet_category_split_{phase}.pickle"] = pickle.dumps(stored)
    return files


def cifar100(classes: int = 3) -> dict[str, bytes]:
    """CIFAR-100's python pickles, as Python 2 wrote them."""

    def batch(count: int, first: int) -> dict[str, Any]:
        order = [(number, label) for number in range(count) for label in range(classes)]
        images = [pixels(label, first + number, 32).transpose(2, 0, 1).reshape(-1) for number, label in order]
        labels = [label for _, label in order]
        return {"data": np.stack(images), "fine_labels": labels, "coarse_labels": [0] * len(labels)}

    names = {"fine_label_names": list(WNIDS[:classes]), "coarse_label_names": ["thing"]}
    parts = {"train": batch(TRAIN, 0), "test": batch(TEST, 10), "meta": names}
    return {f"cifar-100-python/{name}": python2_pickle(value) for name, value in parts.items()}


def npz(path: Path, **changes: object) -> Path:
    """An .npz of three classes; None removes an array."""
    arrays: dict[str, object] = {
        "x_train": np.stack([pixels(i % 3, i // 3) for i in range(6)]),
        "y_train": np.array([0, 1, 2] * 2),
        "x_test": np.stack([pixels(i, 10) for i in range(3)]),
        "y_test": np.array([0, 1, 2]),
    }
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})  # type: ignore[arg-type]
    return path


def python2_pickle(value: object) -> bytes:
    """Text and bytes as Python 2's str, arrays from where NumPy 1 had its code."""
    buffer = io.BytesIO()
    _Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"numpy._core", b"numpy.core")


class _Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_python2_str(self, value: str | bytes) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)

    dispatch[str] = save_python2_str
    dispatch[bytes] = save_python2_str
