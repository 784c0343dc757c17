"""Our code in `fidelity: released` against fixture files: the authors' own, and ones made here."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pip_flower.cli import main
from pip_flower.parity import check_all
from support.released_code import write_fixtures

FIXTURES = Path(
    os.environ.get("PIP_FLOWER_FIXTURES") or Path(__file__).parents[2].parent / "shared" / "fixtures"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fixtures")
    write_fixtures(directory, seed=5)
    return directory


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "fixtures"))


def alter(path: Path, key: str, value: np.ndarray | None) -> None:
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if name != key}
    np.savez(path, **(arrays if value is None else {**arrays, key: value}))


@pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"the authors' fixtures are not in {FIXTURES}")
def test_the_authors_numbers_are_reproduced() -> None:
    far = [found for found in check_all(FIXTURES) if not found.ok]
    assert far == []


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_second_implementation_agrees_on_other_seeds(tmp_path: Path, seed: int) -> None:
    write_fixtures(tmp_path, seed)
    found = check_all(tmp_path)
    assert len(found) == 175
    assert [deviation for deviation in found if not deviation.ok] == []


def test_the_command_prints_every_array_and_succeeds(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(made)]) == 0
    printed = capsys.readouterr().out
    assert "175 arrays, 0 beyond tolerance" in printed


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("dualprompt_forward", "B5.grad.g_prompt"),
        ("l2p_forward", "B6.train.loss"),
        ("prototype", "var"),
        ("fed_weighted_avg", "FedAvg.g_prompt"),
        ("local_epoch", "v2.mean_loss"),
    ],
)
def test_a_deviation_fails_the_command(copied: Path, file: str, key: str) -> None:
    path = copied / f"{file}.npz"
    with np.load(path) as stored:
        value = stored[key] + 3e-5
    alter(path, key, value)
    assert main(["parity", str(copied)]) == 1


def test_nan_where_the_reference_has_a_number_is_a_deviation(copied: Path) -> None:
    path = copied / "prototype.npz"
    with np.load(path) as stored:
        value = np.zeros_like(stored["nan.var"])
    alter(path, "nan.var", value)
    assert main(["parity", str(copied)]) == 1


@pytest.mark.parametrize("file", ["backbone", "dualprompt_forward", "l2p_forward", "prototype"])
def test_a_missing_file_is_named(copied: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / f"{file}.npz").unlink()
    assert main(["parity", str(copied)]) == 2
    assert f"{file}.npz" in capsys.readouterr().err


def test_a_missing_array_is_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(copied / "local_epoch.npz", "v1.mean_loss", None)
    assert main(["parity", str(copied)]) == 2
    assert "local_epoch.npz has no array 'v1.mean_loss'" in capsys.readouterr().err


def test_a_damaged_file_is_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "prototype.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert main(["parity", str(copied)]) == 2
    assert "prototype.npz" in capsys.readouterr().err
