from pathlib import Path

import pytest

from pip_flower.storage.checksummed import TornFileError
from pip_flower.storage.twin_lines import LinesPosition, TwinLines


def written(tmp_path: Path) -> tuple[TwinLines, list[LinesPosition]]:
    lines = TwinLines(tmp_path / "metrics.jsonl", tmp_path / "copy" / "metrics.jsonl")
    positions = [lines.position]
    for number in range(4):
        lines.append(f"line {number}")
        positions.append(lines.position)
    return lines, positions


@pytest.mark.parametrize("cut", ["first", "second"])
@pytest.mark.parametrize("keep", [0, 3, 20])
def test_what_one_file_loses_is_in_the_other(tmp_path: Path, cut: str, keep: int) -> None:
    lines, positions = written(tmp_path)
    path = getattr(lines, cut)
    path.write_bytes(path.read_bytes()[:keep])
    again = TwinLines(lines.first, lines.second)
    assert again.go_back(positions[3]) == ["line 0", "line 1", "line 2"]
    assert again.position == positions[3]
    again.append("line 3")
    assert again.position == positions[4]
    assert lines.first.read_text() == lines.second.read_text() == "line 0\nline 1\nline 2\nline 3\n"


def test_going_back_to_the_start_leaves_empty_files(tmp_path: Path) -> None:
    lines, _ = written(tmp_path)
    assert lines.go_back(LinesPosition()) == []
    assert lines.first.read_bytes() == lines.second.read_bytes() == b""


def test_lines_that_both_files_have_lost_are_missed(tmp_path: Path) -> None:
    lines, positions = written(tmp_path)
    for path in (lines.first, lines.second):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TornFileError, match="cut short or altered"):
        lines.go_back(positions[4])
    assert lines.go_back(positions[3]) == ["line 0", "line 1", "line 2"]


def test_what_a_checkpoint_holds_does_not_grow_with_the_lines(tmp_path: Path) -> None:
    _, positions = written(tmp_path)
    assert {len(str(position)) for position in positions[2:]} == {len(str(positions[1])) + 1}
