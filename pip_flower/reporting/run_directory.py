"""One run, one directory: where each file is, how it is written and read back."""

import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from pip_flower.config import Config
from pip_flower.files import write_json, write_text
from pip_flower.methods.base import Method

# `pip-flower run` tells the revision to the app, which runs from a bundle without history.
REVISION_VARIABLE = "PIP_FLOWER_REVISION"
_PACKAGES = ("flwr", "torch", "torchvision", "timm", "numpy", "ray")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, revision, device."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """One line per round and per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def matrix(self) -> Path:
        """The accuracy matrix and what is derived from it."""
        return self.path / "accuracy.json"

    @property
    def model(self) -> Path:
        """The final global arrays."""
        return self.path / "model.safetensors"

    @property
    def plot(self) -> Path:
        """Accuracy after each task."""
        return self.path / "accuracy.png"

    @property
    def progress(self) -> Path:
        """Where the run is now."""
        return self.path / "progress.json"

    @classmethod
    def create(cls, parent: Path, config: Config, flower_run: int, method: Method) -> "RunDirectory":
        """Make `<experiment>-<method>-<seed>-<time>/` and save configuration and environment."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{config.experiment}-{config.method.label}-{config.seed}-{stamp}"
        parent.mkdir(parents=True, exist_ok=True)
        directory = cls(_fresh(parent, name))
        write_text(directory.config, yaml.safe_dump(config.as_mapping(), sort_keys=False))
        write_json(directory.environment, environment(flower_run, method))
        return directory

    def lines(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        text = self.metrics.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


def environment(flower_run: int, method: Method) -> dict[str, Any]:
    """What the figures of a run were measured on."""
    bench = method.bench
    return {
        "flower_run_id": flower_run,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in _PACKAGES},
        "revision": os.environ.get(REVISION_VARIABLE) or source_revision(),
        "device": str(bench.device),
        "threads": bench.config.runtime.threads,
        "backbone": method.fingerprint(),
        "config": bench.config.digest(),
    }


def _fresh(parent: Path, name: str) -> Path:
    for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
        path = parent / f"{name}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(parent / name)


def source_revision() -> str:
    """The git revision of the sources; empty where they are no checkout (a wheel, a Flower bundle)."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
