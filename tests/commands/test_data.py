from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pip_flower.cli import main
from pip_flower.data.sources import registry
from pip_flower.data.sources.registry import source_named
from support import miniatures
from support.flaky_server import serving
from support.miniatures import write_files, write_tar, write_zip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_info_prints_counts_and_draws_a_contact_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zip(Path("tiny.zip"), miniatures.tiny_imagenet(side=64))
    assert main(["data", "info", "tinyimagenet", "--data-dir", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "tinyimagenet: 3 classes" in printed
    assert "64 x 64" in printed
    assert "classes: 0 thing n01641577, 1 thing n01629819, 2 thing n01443537" in printed
    assert "set dataset.classes=3 to use all of them" in printed
    sheet = np.asarray(Image.open("tinyimagenet-images.png"))
    # Three rows, and in each row the five pictures of its class.
    for row, label in enumerate((2, 1, 0)):
        seen = sheet[4 + row * 68 + 32, 180 + 32 : 180 + 5 * 68 : 68].astype(int)
        expected = np.stack([miniatures.pixels(label, number)[0, 0] for number in range(5)]).astype(int)
        assert np.abs(seen - expected).max() <= 8


def test_prepare_uses_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    write_files(Path("data"), miniatures.cifar100())
    assert main(["data", "prepare", "cifar100", "--data-dir", "data"]) == 0
    printed = capsys.readouterr().out
    assert "training" in printed
    assert "ready; use it with:  --dataset cifar100 --data-dir" in printed


def test_prepare_downloads_and_goes_on_after_a_break(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_tar(Path("original.tar.gz"), miniatures.cifar100()).read_bytes()
    monkeypatch.setattr("pip_flower.data.download._PAUSE", 0)
    with serving(content, "cifar-100-python.tar.gz", at_once=len(content) // 2 + 1) as (server, archive):
        offered = replace(source_named("cifar100"), archive=archive)
        monkeypatch.setitem(registry._SOURCES, "cifar100", offered)
        assert main(["data", "prepare", "cifar100", "--data-dir", "new/place"]) == 0
        assert main(["data", "prepare", "cifar100", "--data-dir", "new/place"]) == 0
    assert server.requests == ["", f"bytes={len(content) // 2 + 1}-"]
    assert Path("new/place/cifar-100-python.tar.gz").read_bytes() == content
    assert "15   " in capsys.readouterr().out


def test_prepare_refuses_an_archive_with_another_checksum(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    write_tar(Path("data/cifar-100-python.tar.gz"), miniatures.cifar100())
    assert main(["data", "prepare", "cifar100", "--data-dir", "data"]) == 2
    assert "is not what its authors published: checksum" in capsys.readouterr().err


def test_prepare_says_what_to_put_where(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    assert main(["data", "prepare", "miniimagenet", "--data-dir", "data"]) == 2
    told = capsys.readouterr().err
    for layout in (
        "train.csv, val.csv and test.csv",
        "class folders",
        "mini-imagenet-cache-{train,val,test}.pkl",
    ):
        assert layout in told
    assert main(["data", "prepare", "folder"]) == 2
    assert (
        "dataset.data_dir: is not set, so that its classes cannot be counted. Give a directory of class"
        in capsys.readouterr().err
    )
    assert main(["data", "prepare", "digits"]) == 0


def test_partition_tells_and_draws_who_holds_what(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = "partition.scheme=dirichlet population.initial=4 partition.empty=allow"
    assert main(["data", "partition", "--plot", "who.png", "--overrides", overrides]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    assert [line[:3] for line in lines] == [[str(t + 1), "2", str(n)] for t, n in enumerate((4, 5, 7, 8, 10))]
    assert sum(int(line[3]) for line in lines) == 1433
    with Image.open("who.png") as picture:
        assert min(picture.size) > 200
