"""Flower's own commands on the project, as its users type them."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a local SuperLink of its own, which `flwr run` starts and leaves running."""
    port = free_port()
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": free_port(),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    yield environment
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        words = process.read_bytes().split(b"\0")
        if any(b"flower-superlink" in word for word in words) and port.encode() in words:
            os.kill(int(process.parent.name), signal.SIGTERM)


def flwr(environment: dict[str, str], *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [BIN / "flwr", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    return done.stdout + done.stderr


def test_flwr_run_works_and_too_few_nodes_do_not_hang(flower: dict[str, str], tmp_path: Path) -> None:
    settings = "schedule.rounds=5 training.epochs=1"
    # However long the machine takes to have its nodes ready.
    patient = f"overrides='{settings} federation.wait_seconds=600'"
    output = flwr(
        flower, "run", ".", "--stream", "--federation-config", "num-supernodes=10", "--run-config", patient
    )
    assert "after task 5: " in output
    made = list((tmp_path / "pip-flower-runs").glob("digits-pip-dualprompt-2021-*/model.safetensors"))
    assert len(made) == 1
    # Flower's default federation has two nodes.
    hasty = f"overrides='{settings} federation.wait_seconds=1'"
    output = flwr(flower, "run", ".", "--stream", "--run-config", hasty)
    assert 'flwr run . --stream --federation-config "num-supernodes=10"' in output


def test_the_bundle_is_complete_on_its_own(tmp_path: Path, flower: dict[str, str]) -> None:
    flwr(flower, "build", "--app", str(ROOT), cwd=tmp_path)
    (bundle,) = tmp_path.glob("*.fab")
    assert bundle.stat().st_size < 10_000_000
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(unpacked)
    top = {path.name for path in unpacked.iterdir()}
    assert {"server_app.py", "client_app.py", "pip_flower", "conf", "pyproject.toml", "README.md"} <= top
    assert "tests" not in top
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import server_app, client_app, pip_flower
assert pip_flower.__file__.startswith(sys.argv[1]), pip_flower.__file__
from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import Workspace
method = make_method(Workspace(load_config(Selection())))
print(method.workspace.backbone.dim, len(method.workspace.data.train))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(unpacked)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["96", "1433"]
