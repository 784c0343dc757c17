"""Small real data (scans of digits) and a configuration that trains on it in seconds."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pip_flower.runtime.torchvision_compat  # noqa: F401  (before a test imports timm)

# Ray warns about its default unless the choice is made.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Tests neither read nor fill the user's cache of queries, nor do they leave clients' states in a home.
for _place in ("cache", "state"):
    _made = tempfile.mkdtemp(prefix=f"pip-flower-{_place}-")
    atexit.register(shutil.rmtree, _made, ignore_errors=True)
    os.environ[f"PIP_FLOWER_{_place.upper()}"] = _made

SMALL = (
    "dataset.classes=6 federation.clients=4 federation.clients_per_round=2 federation.wait_seconds=0 "
    "schedule.tasks=3 schedule.rounds=6 training.epochs=2 training.batch_size=8"
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: end-to-end tests wait for half of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose sockets' names are short enough for the system, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="pf-") as made:
        yield Path(made)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of six classes of handwritten digits: 16 training and 6 test images each."""
    from pip_flower.config.compose import Selection
    from pip_flower.data.loading import load_data
    from pip_flower.method.configuration import load_config

    data = load_data(load_config(Selection()).dataset)
    arrays: dict[str, Any] = {}
    for name, samples, count in (("train", data.train, 16), ("test", data.test, 6)):
        rows = np.concatenate([np.flatnonzero(samples.labels == label)[:count] for label in range(6)])
        arrays |= {f"x_{name}": samples.images[rows], f"y_{name}": samples.labels[rows]}
    path = tmp_path_factory.mktemp("data") / "digits6.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def small_run(small_data: Path) -> dict[str, Any]:
    """Flower's run config for a run of seconds on `small_data`."""
    return {
        "experiment": "digits",
        "method": "",
        "dataset": "",
        "overrides": f"dataset.source=npz backbone.name=embedded {SMALL}",
        "data-dir": str(small_data),
        "seed": 7,
        "out-dir": "",
        "resume": "",
    }
