from pathlib import Path

import pytest

from pip_flower.storage.files import write_bytes, write_json


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2})
    assert path.read_text() == '{\n  "x": 2\n}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with pytest.raises(TypeError):
        write_bytes(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]
