"""Which runs are put together, and what is said about the others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pip_flower.cli import main
from pip_flower.reporting.comparison import Comparison, compare_runs
from pip_flower.reporting.live import find_run
from pip_flower.reporting.results import RunResult
from support.made_up_runs import made_up_run

QUICK = "schedule.tasks=2 schedule.rounds=2"


def compared(*paths: Path) -> Comparison:
    return compare_runs([RunResult.read(path) for path in paths])


def rows(comparison: Comparison) -> list[list[tuple[str, int]]]:
    return [[(run.row, run.seed) for run in table] for table in comparison.tables]


def test_seeds_and_methods_of_one_setting_stand_together(tmp_path: Path) -> None:
    first, second = (made_up_run(tmp_path, QUICK, seed) for seed in (7, 8))
    other = made_up_run(tmp_path, QUICK, 7, "frozen-head")
    found = compared(first, second, other)
    assert rows(found) == [[("ncm", 7), ("ncm", 8), ("frozen-head", 7)]]
    assert found.notices == ["rows have different seeds: ncm: 7, 8; frozen-head: 7"]


def test_keys_that_no_result_depends_on_make_no_difference(tmp_path: Path) -> None:
    neutral = "runtime.threads=2 runtime.cache_dir=/x checkpoint.keep=all federation.round_timeout=9"
    found = compared(made_up_run(tmp_path, QUICK), made_up_run(tmp_path, f"{QUICK} {neutral}", 8))
    assert (rows(found), found.notices) == ([[("ncm", 7), ("ncm", 8)]], [])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("schedule.rounds=4", "schedule.rounds: 4 instead of 2"),
        ("federation.clients=5", "federation.clients: 5 instead of 10"),
        ("backbone.image_size=28", "backbone.image_size: 28 instead of 0"),
        ("dataset.keep.train=20", "dataset.keep.train: 20 instead of 0"),
    ],
)
def test_what_differs_stands_apart_and_is_told(tmp_path: Path, overrides: str, said: str) -> None:
    first = RunResult.read(made_up_run(tmp_path, QUICK, 7))
    key, _, value = overrides.partition("=")
    second = replace(first, seed=8, settings={**first.settings, key: int(value)})
    found = compare_runs([first, second])
    assert rows(found) == [[("ncm", 7)], [("ncm", 8)]]
    assert found.notices == [f"table 2 stands apart from table 1: {said}"]


def test_settings_of_a_method_get_rows_of_their_own(tmp_path: Path) -> None:
    slow = made_up_run(tmp_path, f"{QUICK} training.learning_rate=0.5", 7, "frozen-head")
    found = compared(made_up_run(tmp_path, QUICK, 7, "frozen-head"), slow)
    assert rows(found) == [[("frozen-head", 7), ("frozen-head (2)", 7)]]
    (notice,) = found.notices
    assert (
        notice
        == "frozen-head (2) is not the same as frozen-head: training.learning_rate: 0.5 instead of 0.005"
    )


def test_a_seed_counts_once_and_the_newest_run_wins(tmp_path: Path) -> None:
    older, newer = (RunResult.read(made_up_run(tmp_path, QUICK)) for _ in range(2))
    newer = replace(newer, started="2999-01-01T00:00:00+0000")
    found = compare_runs([newer, older])
    assert [run.path for run in found.tables[0]] == [newer.path]
    assert found.notices == [f"{older.path} is left out: {newer.path} is newer, of the same seed 7"]


def test_images_are_told_apart_by_what_they_are_not_by_where_they_are(tmp_path: Path) -> None:
    one = RunResult.read(made_up_run(tmp_path, QUICK, 1, data="abc"))
    moved = replace(one, seed=2, data_dir="/elsewhere")
    others = replace(one, seed=3, images="def", data_dir="/others")
    untold = replace(others, seed=4, images="")
    found = compare_runs([one, moved, others, untold])
    assert rows(found) == [[("ncm", 1), ("ncm", 2)], [("ncm", 3), ("ncm", 4)]]
    assert found.notices == ["table 2 stands apart from table 1: images: def instead of abc"]


def test_a_report_of_runs_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        made_up_run(tmp_path, QUICK),
        made_up_run(tmp_path, "schedule.tasks=5 schedule.rounds=5", drop=5),
    ]
    assert main(["report", *map(str, paths), "--output", str(tmp_path / "report")]) == 0
    said = capsys.readouterr().out
    assert "±" not in said
    assert "note: table 2 stands apart from table 1: schedule.rounds: 5 instead of 2; schedule.tasks" in said
    assert (tmp_path / "report" / "accuracy-2.png").is_file()
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert [(run["table"], run["average"]) for run in results] == [(1, 85.0), (2, 80.0)]


def test_what_is_no_finished_run_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, unfinished, broken, cut = (made_up_run(tmp_path, QUICK, seed) for seed in range(4))
    (unfinished / "model.safetensors").unlink()
    (broken / "environment.json").write_text("[1]")
    (cut / "accuracy.json").write_text((cut / "accuracy.json").read_text()[:20])
    foreign = tmp_path / "holidays"
    foreign.mkdir()
    paths = map(str, (unfinished, broken, cut, foreign, good))
    assert main(["report", *paths, "--output", str(tmp_path / "report")]) == 0
    told = capsys.readouterr()
    assert "ncm" in told.out
    for said in (
        f"{unfinished} is not a finished run: it has no model.safetensors. ",
        f"{broken} is damaged (",
        f"{cut} is damaged (JSONDecodeError: ",
        f"{foreign} is not a finished run: it has no config.yaml. ",
    ):
        assert f"pip-flower: skipped: {said}" in told.err


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "metrics.jsonl", "accuracy.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]\n", "{}\n", '{"matrix": []}\n', "\xff\xfe"])
def test_no_damage_of_a_file_is_a_traceback(
    tmp_path: Path, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made_up_run(tmp_path, QUICK)
    (path / name).write_text(content, encoding="latin1")
    assert main(["report", str(path), "--output", str(tmp_path / "report")]) == 2
    assert "there is no finished run among them" in capsys.readouterr().err


def test_a_run_is_found_among_broken_and_foreign_neighbours(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, QUICK)
    for number, content in enumerate(["", "{", "[1]", "{}", "3", '{"flower_run_id": []}']):
        neighbour = tmp_path / f"zz-{number}"
        neighbour.mkdir()
        (neighbour / "environment.json").write_text(content)
    found = find_run(tmp_path, 42)
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["report", "run", "--output", "file/x"], "--output"),
        (["data", "info", "digits", "--sheet", "file/x.png"], "--sheet"),
        (["data", "partition", "--plot", "file/x.png"], "--plot"),
        (["run", "--out-dir", "file"], "--out-dir"),
        (["suite", "--methods", "ncm", "--out-dir", "file/x"], "--out-dir"),
        (["deploy", "local", "--out-dir", "file"], "--out-dir"),
    ],
)
def test_places_that_cannot_be_written_are_refused(
    command: list[str],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert main(command) == 2
    assert f"{option}: '{tmp_path}/file' is not a directory. Give another place" in capsys.readouterr().err


def test_an_error_of_the_disk_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-images.png").mkdir()
    assert main(["data", "info", "digits"]) == 2
    assert f"pip-flower: '{tmp_path}/digits-images.png': Is a directory" in capsys.readouterr().err
