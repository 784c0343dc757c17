"""Which revision of the sources runs."""

import os
import subprocess
from pathlib import Path

# `pip-flower run` tells the revision to the app, which runs from a bundle without history.
REVISION_VARIABLE = "PIP_FLOWER_REVISION"


def revision() -> str:
    """As the launcher told it, or as git does."""
    return os.environ.get(REVISION_VARIABLE) or source_revision()


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
