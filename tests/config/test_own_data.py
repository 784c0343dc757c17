"""Data of the user's own: how runs are called, how classes are counted, which backbone they get."""

from pathlib import Path

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.configuration import load_config
from support import miniatures
from support.miniatures import write_files, write_tar

EMBEDDED = "backbone.name=embedded schedule.tasks=1"


def npz(path: Path, classes: int = 6, **more: object) -> Path:
    labels = np.arange(classes).repeat(2)
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels, **more)
    return path


def load(path: Path, overrides: str = EMBEDDED, dataset: str = "npz", **more: str) -> Config:
    return load_config(Selection(dataset=dataset, data_dir=str(path), overrides=overrides, **more))


def test_classes_are_counted_where_none_are_configured(tmp_path: Path) -> None:
    assert load(npz(tmp_path / "a.npz", 6)).dataset.classes == 6
    named = npz(tmp_path / "b.npz", 3, class_names=np.array(["a", "b", "c", "d"]))
    assert load(named).dataset.classes == 4
    assert load(named, f"{EMBEDDED} dataset.keep.classes=2").dataset.classes == 2
    assert load(named, f"{EMBEDDED} dataset.classes=3").dataset.classes == 3
    folder = tmp_path / "folder"
    write_files(folder, {f"{name}/{n}.png": b"" for name in ("cat", "dog", "owl") for n in range(2)})
    assert load(folder, dataset="folder").dataset.classes == 3
    archive = write_tar(tmp_path / "cifar.tar.gz", miniatures.cifar100())
    assert load(archive, f"{EMBEDDED} dataset.classes=0", "cifar100").dataset.classes == 3


def test_names_suffice_where_the_data_is_elsewhere() -> None:
    overrides = f"{EMBEDDED} dataset.class_names=[cat,dog,owl]"
    assert load_config(Selection(dataset="folder", overrides=overrides)).dataset.classes == 3


def test_what_cannot_be_counted_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dataset.data_dir: is not set, .*; or set dataset.classes$"):
        load_config(Selection(dataset="folder", overrides=EMBEDDED))
    with pytest.raises(ConfigError, match=r"^dataset.data_dir: there is no file '.*none.npz', so that"):
        load(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="dataset.classes .*: 1 is too few to tell apart"):
        load(npz(tmp_path / "one.npz", 1))


def test_another_kind_of_file_is_not_taken_for_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("x, y\n1, 2\n")
    with pytest.raises(ConfigError, match="cannot be read: it is no .npz file") as refused:
        load(path)
    assert "pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (20, "Give schedule.tasks=2 (2 x 10 classes), or schedule.tasks=4 (4 x 5 classes), or "),
        (20, "schedule.base_classes=8 (8 classes, then 2 x 6)"),
        (7, "Give schedule.tasks=7 schedule.rounds=21 (7 x 1 classes), or schedule.base_classes=3 "),
    ],
)
def test_task_splits_that_fit_are_suggested_and_do_fit(tmp_path: Path, classes: int, said: str) -> None:
    path = npz(tmp_path / "a.npz", classes)
    asked = "backbone.name=embedded schedule.tasks=3 schedule.rounds=24"
    with pytest.raises(ConfigError) as refused:
        load(path, asked)
    assert said in str(refused.value)
    told = str(refused.value).partition(". Give ")[2]
    for split in told.split(", or "):
        assert load(path, f"{asked} {split.partition(' (')[0]}").dataset.classes == classes


def test_runs_are_called_after_their_data(tmp_path: Path) -> None:
    assert load_config(Selection()).experiment == "digits"
    assert load_config(Selection(experiment="real-small")).experiment == "real-small"
    assert load_config(Selection(dataset="digits")).experiment == "digits"
    assert load_config(Selection(dataset="cifar100", overrides=EMBEDDED)).experiment == "cifar100"
    photos = npz(tmp_path / "my photos.v2.npz")
    assert load(photos).experiment == "my-photos.v2"
    assert load(photos, experiment="digits").experiment == "my-photos.v2"
    swapped = Selection(overrides=f"{EMBEDDED} dataset.source=npz dataset.classes=4", data_dir="/x/birds.npz")
    assert load_config(swapped).experiment == "birds"


def test_other_data_than_digits_has_settings_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schedule.tasks \(set in conf/experiment/own.yaml\): 5 tasks"):
        load(npz(tmp_path / "a.npz"), "backbone.name=embedded")
    assert load(npz(tmp_path / "b.npz"), EMBEDDED).training.learning_rate == 0.02


def test_the_embedded_vit_is_for_digits_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match="the embedded ViT knows drawn glyphs only") as refused:
        load(path, "schedule.tasks=3 schedule.rounds=3")
    for remedy in ("backbone.name=deit_tiny_patch16_224 backbone.pretrained=true", "backbone.weights=/path"):
        assert remedy in str(refused.value)
    tasks = "schedule.tasks=3 schedule.rounds=3"
    assert load(path, f"{tasks} backbone.name=embedded").backbone.name == "embedded"
    assert load(path, f"{tasks} backbone.weights=/data/vit.safetensors").backbone.name == "embedded"
    assert load(path, f"{tasks} backbone.name=deit_tiny_patch16_224 backbone.pretrained=true")
    assert load(path, tasks, method="fedavg").method.name == "fedavg"
