"""What README.md and docs/data.md tell people to type for their own images."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from pip_flower.cli import main
from support.miniatures import write_files

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^pip-flower run --dataset (?:.*\\\n)*.*$", re.MULTILINE)


def commands() -> list[list[str]]:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/data.md")]
    return [shlex.split(found.replace("\\\n", "")) for text in texts for found in COMMAND.findall(text)]


def test_the_documented_commands_make_runs_on_own_images_with_a_backbone_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "pictures", {f"class-{n:02}/{i}.jpg": b"" for n in range(20) for i in range(3)})
    images, labels = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20)
    np.savez(tmp_path / "parts.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    found = commands()
    assert len(found) == 4
    for _, _, *words in found:
        data = words.index("--data-dir") + 1
        words[data] = str(tmp_path / Path(words[data]).name)
        assert main(["config", "show", *words]) == 0
        config = yaml.safe_load(capsys.readouterr().out)
        assert config["dataset"]["classes"] == 20
        assert config["experiment"] == Path(words[data]).stem
        assert config["backbone"]["name"] != "embedded"
        assert config["backbone"]["pretrained"] or config["backbone"]["weights"]
