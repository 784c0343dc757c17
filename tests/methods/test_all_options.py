"""Whatever configuration is accepted, runs: options of every method, combined by hypothesis.

PLAY_CONFIGURATIONS=1000 pytest tests/methods/test_all_options.py -s
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.method.configuration import load_config
from support.networks import quick
from support.option_space import configurations, trains_network
from support.runs import Notes, play

EXAMPLES = int(os.environ.get("PLAY_CONFIGURATIONS", "50"))
TINY = (
    "dataset.classes=4 dataset.keep.classes=4 dataset.keep.train=6 dataset.keep.test=3 "
    "federation.clients=3 federation.clients_per_round=2 federation.wait_seconds=0 schedule.tasks=2 "
    "schedule.rounds=4 training.batch_size=4"
)
TINY_NETWORK = "method.network=resnet10t method.stem=imagenet method.image_size=16"


def judge(label: str, changes: str, state_dir: Path) -> str:
    """Play it: refused before the first round, or finished with finite metrics."""
    run_config: dict[str, Any] = {"experiment": "digits", "method": label, "seed": 7}
    shipped = load_config(Selection(method=label))
    small = f"{TINY_NETWORK if trains_network(shipped) else ''} {quick(shipped.method.options)}"
    common = f"{TINY} {small} runtime.state_dir={state_dir}"
    run_config["overrides"] = f"{common} {changes}"
    notes = Notes()
    refusal = ""
    try:
        play(run_config, notes=notes)
    except ConfigError as error:
        refusal = f"refused for {error.key}"
    if refusal:
        assert not notes.rounds
        return refusal
    require_finished(notes)
    return "finished"


def require_finished(notes: Notes) -> None:
    assert [record.round for record in notes.rounds] == [1, 2, 3, 4]
    assert [record.failures for record in notes.rounds] == [[]] * 4
    metrics = [value for record in notes.rounds for value in record.metrics.values()]
    accuracies = [value for record in notes.evaluations for value in record.accuracies]
    assert len(accuracies) == 3
    assert np.isfinite([*metrics, *accuracies]).all()
    assert all(np.isfinite(value).all() for value in notes.final.values())


def test_what_is_accepted_runs(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(configurations())
    def played(configuration: tuple[str, str]) -> None:
        counts[judge(*configuration, tmp_path)] += 1

    played()
    print(dict(counts))
    assert counts["finished"] > EXAMPLES / 2
