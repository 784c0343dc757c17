"""Images that are set aside for choices: never trained on, never test images."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.data.samples import Samples
from pip_flower.data.validation import hold_out
from pip_flower.method.configuration import load_config
from pip_flower.method.workspace import Workspace
from support.runs import play

VALIDATED = "dataset.validation_fraction=0.25 evaluation.split=validation"


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), fraction=st.floats(0, 0.9))
def test_nothing_is_lost_and_nothing_is_twice(labels: list[int], fraction: float) -> None:
    count = len(labels)
    ids = np.arange(count) * 7
    samples = Samples(np.zeros((count, 2, 2, 3), np.uint8), np.array(labels, np.int64), ids)
    training, validation = hold_out(samples, fraction)
    assert sorted([*training.ids, *validation.ids]) == ids.tolist()
    for label in set(labels):
        kept, held = ((part.labels == label).sum() for part in (training, validation))
        assert kept >= 1
        assert held == (0 if fraction == 0 else min(max(1, round(fraction * (kept + held))), kept + held - 1))


def test_which_ones_depends_on_their_ids_alone() -> None:
    ids = np.arange(40)
    samples = Samples(np.zeros((40, 2, 2, 3), np.uint8), ids % 2, ids)
    mixed = np.random.default_rng(0).permutation(40)
    held = hold_out(samples, 0.3)[1].ids
    assert sorted(hold_out(samples.take(mixed), 0.3)[1].ids) == held.tolist() != list(range(len(held)))


def workspace(overrides: str, seed: int = 2021) -> Workspace:
    return Workspace(load_config(Selection(overrides=overrides, seed=seed)))


@pytest.mark.parametrize("seed", [1, 2])
def test_all_runs_are_validated_on_the_same_training_images(seed: int) -> None:
    plain, split = workspace("", seed), workspace(VALIDATED, seed)
    tested = np.concatenate([split.test_samples(task).ids for task in range(5)])
    trained = np.concatenate(
        [split.client_samples(task, client, "train").ids for task in range(5) for client in range(10)]
    )
    first = workspace(VALIDATED, 1)
    assert set(tested) == {id_ for task in range(5) for id_ in first.test_samples(task).ids}
    assert set(trained) | set(tested) == set(plain.data.train.ids)
    assert not set(trained) & set(tested)
    assert not set(tested) & set(plain.data.test.ids)
    by_client = [split.client_samples(0, client, "test").ids for client in range(10)]
    assert sorted(np.concatenate(by_client)) == sorted(split.test_samples(0).ids)


def test_a_run_says_what_it_measured_on(small_run: dict[str, Any]) -> None:
    """Test images have no part in it: other ones change nothing."""
    overrides = f"{small_run['overrides']} {VALIDATED} training.epochs=1"
    run = small_run | {"overrides": overrides}
    samples = play(run).evaluations[0].samples
    split = Workspace(load_config(Selection.from_run_config(run)))
    assert samples == [len(split.test_samples(0))]
    assert samples != [(split.data.test.labels < 2).sum()]


def test_without_images_to_validate_on_nothing_starts() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.validation_fraction is 0") as error:
        load_config(Selection(overrides="evaluation.split=validation"))
    assert "dataset.validation_fraction=0.2" in str(error.value)
