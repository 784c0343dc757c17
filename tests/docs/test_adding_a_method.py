"""docs/adding-a-method.md: its package is written, installed and run as the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`(my-methods/\S+)`.*?\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(pip(?:-flower)? .+)$", re.MULTILINE)
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULE = "my-methods/my_methods/my_prox.py"
Environment = dict[str, str]


def files() -> dict[str, str]:
    return dict(FILE.findall(PAGE))


def command(start: str) -> list[str]:
    """The page's only command that starts so."""
    (found,) = (
        line for block in BLOCK.findall(PAGE) for line in COMMAND.findall(block) if line.startswith(start)
    )
    return shlex.split(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that has the page's package beside ours."""
    place = tmp_path_factory.mktemp("page")
    for name, text in files().items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (place / MODULE).with_name("__init__.py").touch()
    # Nothing is fetched, and nobody else's environment changes.
    offline = ["--no-deps", "--no-build-isolation", "--quiet", "--target", "site"]
    program, *words = command("pip install")
    done = subprocess.run(
        [sys.executable, "-m", program, *words, *offline], cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": str(place / "site")}


def execute(words: list[str], environment: Environment, cwd: Path) -> str:
    done = subprocess.run(
        [BIN / words[0], *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_a_small_package() -> None:
    names = ("my-methods/pyproject.toml", MODULE, "my-methods/my_methods/my-prox.yaml")
    assert tuple(files()) == names
    assert len(files()[MODULE].splitlines()) <= 40


def test_the_method_is_listed(installed: Environment, tmp_path: Path) -> None:
    listed = execute(command("pip-flower methods"), installed, tmp_path)
    assert re.search(r"^my-prox +FedAvg with a proximal term$", listed, re.MULTILINE)


def test_without_its_term_it_is_fedavg(
    installed: Environment, small_run: dict[str, Any], tmp_path: Path
) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from support.runs import digest, play
def final(method, overrides=""):
    tiny = "method.network=resnet10t method.stem=imagenet training.epochs=1 schedule.rounds=3"
    run = {small_run!r}
    overrides = f"{{run['overrides']}} {{tiny}} {{overrides}}"
    return digest(play(run | {{"method": method, "overrides": overrides}}).final)
fedavg = final("fedavg")
assert final("my-prox", "method.mu=0") == fedavg
assert final("my-prox", "method.mu=1") != fedavg
assert final("my-prox", "method.mu=1") == final("fedprox", "method.proximal=1")
"""
    execute(["python", "-c", script], installed, tmp_path)


def test_its_options_are_checked(installed: Environment, tmp_path: Path) -> None:
    words = ["pip-flower", "run", "--method", "my-prox", "--overrides", "method.mu=-1"]
    done = subprocess.run(
        [BIN / words[0], *words[1:]], cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=900
    )
    assert done.returncode != 0
    assert "method.mu" in done.stdout + done.stderr


def test_the_run_of_the_page(installed: Environment, tmp_path: Path) -> None:
    execute(command("pip-flower run"), installed, tmp_path)
    (run,) = (tmp_path / "runs").glob("digits-my-prox-*")
    assert (run / "model.safetensors").is_file()


# One deployment at a time.
@pytest.mark.xdist_group("deployment")
def test_the_deployment_of_the_page(installed: Environment, tmp_path: Path) -> None:
    execute(command("pip-flower deploy local"), installed, tmp_path)
    (run,) = (tmp_path / "runs").glob("digits-my-prox-*")
    assert (run / "model.safetensors").is_file()
