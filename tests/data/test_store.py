"""Images are decoded once and shared; a store that is damaged or out of date is made anew."""

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.loading import load_data
from pip_flower.data.samples import ImageData, StoredImages
from pip_flower.data.sources import pictures
from pip_flower.data.store import ImageStore
from pip_flower.method.configuration import load_config
from support import miniatures


@pytest.fixture
def config(tmp_path: Path) -> DatasetConfig:
    chosen = load_config(
        Selection(dataset="folder", overrides="dataset.classes=10 backbone.name=embedded")
    ).dataset
    root = miniatures.write_files(tmp_path / "own", miniatures.class_folders(count=6))
    return replace(chosen, data_dir=str(root), classes=3, stored_size=0)


def store_of(data: ImageData) -> ImageStore:
    assert isinstance(data.train.images, StoredImages)
    assert isinstance(data.train.images.stored, ImageStore)
    return data.train.images.stored


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    decoded: list[int] = []
    real = pictures.decode

    def counting(encoded: bytes, size: int) -> pictures.Image:
        decoded.append(1)
        return real(encoded, size)

    monkeypatch.setattr(pictures, "decode", counting)
    return decoded


def test_images_are_decoded_once(
    tmp_path: Path, config: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoding(monkeypatch)
    first = load_data(config, tmp_path / "cache")
    assert len(decoded) == 18
    again = load_data(config, tmp_path / "cache")
    assert len(decoded) == 18
    assert np.array_equal(first.train.images, again.train.images)
    assert np.array_equal(first.train.ids, again.train.ids)


def test_taking_samples_copies_no_image(tmp_path: Path, config: DatasetConfig) -> None:
    data = load_data(config, tmp_path / "cache")
    rows = np.arange(len(data.train))[::2]
    taken = data.train.take(rows).take(np.array([1, 0]))
    assert isinstance(taken.images, StoredImages)
    assert taken.images.stored is store_of(data)
    assert np.array_equal(taken.images[:], data.train.images[rows[[1, 0]]])
    both = taken.joined(data.train)
    assert isinstance(both.images, StoredImages)
    assert both.images.stored is store_of(data)
    assert len(both) == 2 + len(data.train)


def test_a_changed_source_takes_the_place_of_the_old(tmp_path: Path, config: DatasetConfig) -> None:
    before = load_data(config, tmp_path / "cache")
    miniatures.write_files(Path(config.data_dir), miniatures.class_folders(count=8))
    after = load_data(config, tmp_path / "cache")
    assert len(after.train) > len(before.train)
    assert store_of(after).path == store_of(before).path
    # Whoever has mapped the old files goes on with them.
    assert before.train.images[:].shape == (len(before.train), 8, 8, 3)


@pytest.mark.parametrize("damage", ["cut images", "cut table", "other text", "no description"])
def test_a_damaged_store_is_made_anew(
    tmp_path: Path, config: DatasetConfig, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    data = load_data(config, tmp_path / "cache")
    whole = data.train.images[:]
    path = store_of(data).path
    if damage == "cut images":
        os.truncate(path / "images.bin", 100)
    elif damage == "cut table":
        os.truncate(path / "rows.bin", 20)
    elif damage == "other text":
        (path / "description.json").write_text('{"identity": 3}')
    else:
        (path / "description.json").unlink()
    decoded = count_decoding(monkeypatch)
    assert np.array_equal(load_data(config, tmp_path / "cache").train.images, whole)
    assert len(decoded) == 18


def test_a_changed_pixel_is_noticed_when_it_is_read(tmp_path: Path, config: DatasetConfig) -> None:
    data = load_data(config, tmp_path / "cache")
    whole = data.train.images[:]
    images = store_of(data).path / "images.bin"
    raw = bytearray(images.read_bytes())
    raw[5 * 8 * 8 * 3 + 7] ^= 1
    images.write_bytes(raw)
    opened, another = (load_data(config, tmp_path / "cache") for _ in range(2))
    assert np.array_equal(opened.train.images[4], whole[4])
    assert np.array_equal(opened.train.images[:], whole)
    mended = images.stat().st_ino
    assert images.read_bytes() != bytes(raw)
    # Whoever still has the damaged files mapped takes the new ones instead of making them again.
    assert np.array_equal(another.train.images[:], whole)
    assert images.stat().st_ino == mended


def test_what_a_killed_process_leaves_is_cleared_away(tmp_path: Path, config: DatasetConfig) -> None:
    path = store_of(load_data(config, tmp_path / "cache")).path
    (path / "description.json").unlink()
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.mkdir()
    (unfinished / "images.bin").write_bytes(b"half")
    assert len(load_data(config, tmp_path / "cache").train) == 15
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_of_two_processes_one_decodes_and_both_see_the_same(
    tmp_path: Path, config: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoding(monkeypatch)
    # Forked, because a fresh process spends seconds on imports.
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(2), context.Queue()

    def work() -> None:
        start.wait()
        data = load_data(config, tmp_path / "cache")
        answers.put((len(decoded), int(data.train.images[:].sum())))

    both = [context.Process(target=work) for _ in range(2)]
    for process in both:
        process.start()
    found = sorted(answers.get(timeout=300) for _ in both)
    for process in both:
        process.join()
    assert [count for count, _ in found] == [0, 18]
    assert found[0][1] == found[1][1]
