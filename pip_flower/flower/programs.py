"""Flower's programs as processes of ours: which ones, in which environment, on which ports."""

import os
import socket
import sys
from pathlib import Path

from pip_flower.flower.revision import REVISION_VARIABLE, source_revision


def flower_environment(home: Path) -> dict[str, str]:
    """For Flower's programs, with `home` as their home."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # The app runs in this very environment; Flower would build a new one for every run.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        # The app runs from a bundle, which has no history to ask.
        REVISION_VARIABLE: source_revision(),
        # Keeps Ray from hiding GPUs of actors that ask for none, and from warning about it.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def program(name: str) -> str:
    """A program of this very environment."""
    return str(Path(sys.executable).parent / name)


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
