"""Every file of conf/method, played from the first round to the last inside this process."""

from typing import Any

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config, method_labels
from support.networks import TINY, quick
from support.runs import play


@pytest.mark.parametrize("label", method_labels())
def test_every_method_plays_a_run(small_run: dict[str, Any], label: str) -> None:
    run_config = small_run | {"method": label}
    run_config["overrides"] += " schedule.rounds=3 training.epochs=1"
    options = load_config(Selection.from_run_config(run_config)).method.options
    if hasattr(options, "network"):
        run_config["overrides"] += f" {TINY}"
    run_config["overrides"] += f" {quick(options)}"
    notes = play(run_config)
    assert [record.round for record in notes.rounds] == [1, 2, 3]
    assert [len(record.accuracies) for record in notes.evaluations] == [1, 2, 3]
    assert sum(record.failed for record in notes.rounds) == 0
    assert notes.final
    assert all(np.isfinite(value).all() for value in notes.final.values())
