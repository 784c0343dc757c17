"""What can be known before a run starts is told before Flower is started, and by the server too."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pip_flower.cli import main
from pip_flower.commands.running import resume_command
from pip_flower.config.compose import Selection
from pip_flower.config.files import available
from pip_flower.config.schema import ConfigError
from pip_flower.method.configuration import load_config
from pip_flower.models.backbone import outline_backbone
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.roster import FederationError, TooFewRepliesError
from pip_flower.server.preflight import check_start
from support.killing import serve_here
from support.local_grid import LocalGrid
from support.toy import runtime

RunConfig = dict[str, Any]
WRONG = {
    "no weights": ("backbone.weights=/nowhere.pth", "backbone.weights: there is no file '/nowhere.pth'"),
    "other weights": (
        "backbone.weights={path}/wrong.safetensors",
        "does not fit the backbone .* Set backbone.name to",
    ),
    "no ViT": ("backbone.name=resnet18", "'resnet18' cannot take prompts: it is a ResNet"),
    "unknown ViT": ("backbone.name=vit_none", "timm cannot make 'vit_none'"),
    "blocks": ("method.prompt.expert_blocks=[40]", "but the backbone has 6 blocks"),
    "device": ("runtime.device=cuda:99", "runtime.device: "),
    "image size": ("backbone.image_size=33", "the embedded ViT takes "),
    "no data": ("dataset.data_dir=/nowhere.npz", "dataset.data_dir: there is no "),
    "classes": ("dataset.classes=3", "dataset.classes: 3 configured, but the data has 6 classes"),
    "out-dir": ("", "out-dir: '.*/file' is not a directory. Give another place"),
}


@pytest.fixture(params=WRONG)
def wrong(
    request: pytest.FixtureRequest, small_run: RunConfig, small_data: Path, tmp_path: Path
) -> tuple[RunConfig, str]:
    """A run config that cannot work, and what is said about it."""
    overrides, said = WRONG[request.param]
    save_file({"cls_token": torch.zeros(1, 1, 5)}, tmp_path / "wrong.safetensors")
    (tmp_path / "file").touch()
    out_dir = tmp_path / ("file" if request.param == "out-dir" else "runs")
    data = f"dataset.data_dir={small_data}"
    changed = f"{small_run['overrides']} {data} {overrides.format(path=tmp_path)}"
    return small_run | {"data-dir": "", "overrides": changed, "out-dir": str(out_dir)}, said


def test_it_is_told_before_flower_starts(
    wrong: tuple[RunConfig, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_config, said = wrong
    chosen = ["--experiment", "digits", "--overrides", run_config["overrides"]]
    # 2 is this command's own refusal; what Flower's app refuses ends with 1.
    assert main(["run", *chosen, "--out-dir", run_config["out-dir"]]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.search(said, told.err)


def test_the_server_refuses_it_too_and_leaves_nothing_behind(
    wrong: tuple[RunConfig, str], tmp_path: Path
) -> None:
    run_config, said = wrong
    with pytest.raises(ConfigError, match=said):
        serve_here(run_config)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", available("method"))
def test_what_can_be_run_passes(method: str, small_run: RunConfig) -> None:
    check_start(load_config(Selection.from_run_config(small_run | {"method": method})))


def test_a_large_backbone_is_looked_at_without_its_arrays() -> None:
    chosen = load_config(Selection(overrides="backbone.name=vit_giant_patch14_224")).backbone
    outline = outline_backbone(chosen, runtime())
    assert (outline.depth, outline.dim) == (40, 1408)
    assert {value.device.type for value in outline.vit.parameters()} == {"meta"}


def test_a_run_whose_clients_do_not_come_leaves_no_directory(small_run: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(FederationError):
        serve_here(small_run | {"out-dir": str(tmp_path / "runs")}, LocalGrid(3, small_run))
    assert not (tmp_path / "runs").exists()


class FailingGrid(LocalGrid):
    """Its clients reply so many times, and then fail for good."""

    def __init__(self, replies: int, run_config: RunConfig) -> None:
        super().__init__(4, run_config)
        self.left = replies

    def reply_to(self, message: Any) -> Any:
        if message.metadata.message_type != "query":
            self.left -= 1
            if self.left < 0:
                self.broken = set(self.contexts)
        return super().reply_to(message)


@pytest.mark.parametrize(("replies", "kept"), [(0, False), (4, True)])
def test_only_what_was_done_is_said_to_be_kept(
    small_run: RunConfig, tmp_path: Path, replies: int, kept: bool
) -> None:
    run_config = small_run | {"method": "ncm", "out-dir": str(tmp_path / "runs")}
    with pytest.raises(TooFewRepliesError):
        serve_here(run_config, FailingGrid(replies, run_config))
    (path,) = (tmp_path / "runs").iterdir()
    assert bool(resume_command(RunDirectory(path), ())) is kept
