"""HGP: the mixture of clients' Gaussians, draws from it, and the head that is fitted to them."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.config.schema import ConfigError
from pip_flower.methods.pip.hgp import HGP, RebalanceOptions, mixture_draws
from pip_flower.models.prompts.coda import component_weights
from pip_flower.prototypes import Prototypes
from support.runs import play, strategy_for

RunConfig = dict[str, Any]
SMALL = "training.epochs=1 method.prompt.components=2 method.rebalance.draws=20"
OPTIONS = RebalanceOptions(
    draws=20_000, epochs=1, batch_size=64, learning_rate=0.1, momentum=0.9, temperature=0.1, variance=4.0
)


def balanced(small_run: RunConfig, overrides: str = "") -> RunConfig:
    return small_run | {"method": "hgp", "overrides": f"{small_run['overrides']} {SMALL} {overrides}"}


def method_of(run_config: RunConfig) -> HGP:
    method = strategy_for(run_config).method
    assert isinstance(method, HGP)
    return method


def table(rows: list[tuple[int, float, float, int]]) -> Prototypes:
    """Of classes, means and variances (in two dimensions), counts."""
    classes, mean, variance, count = (np.array(column) for column in zip(*rows, strict=True))
    return Prototypes(classes, np.outer(mean, [1.0, 1.0]), np.outer(variance, [1.0, 1.0]), count)


def test_a_draw_is_a_class_then_a_client_by_samples_then_a_feature() -> None:
    mixture = table([(3, 0.0, 0.01, 1), (3, 100.0, 0.04, 3), (5, -50.0, 0.0, 7)])
    generator = torch.Generator().manual_seed(0)
    ((features, targets),) = mixture_draws(mixture, np.array([5, 3]), OPTIONS, generator)
    assert len(targets) == 40_000
    assert float((targets == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert torch.allclose(features[targets == 0], torch.tensor(-50.0))
    own = features[targets == 1]
    second = own[:, 0] > 50
    assert float(second.float().mean()) == pytest.approx(0.75, abs=0.02)
    # Variances times four.
    assert float(own[second].std()) == pytest.approx(0.4, rel=0.05)
    assert float(own[~second].std()) == pytest.approx(0.2, rel=0.05)


def test_the_server_keeps_a_row_for_each_client_and_old_ones_of_unreported_classes(
    small_run: RunConfig,
) -> None:
    sharing = method_of(balanced(small_run)).sharing
    before = table([(0, 1.0, 1.0, 5), (0, 2.0, 1.0, 5), (1, 3.0, 1.0, 5)]).as_arrays()
    updates = [table([(0, 7.0, 1.0, 2)]).as_arrays(), table([(0, 8.0, 1.0, 4)]).as_arrays()]
    found = sharing.merged(0, updates, [1.0, 1.0], before)
    assert found["prototype.classes"].tolist() == [0, 0, 1]
    assert found["prototype.mean"][:, 0].tolist() == [7.0, 8.0, 3.0]
    assert found["prototype.count"].tolist() == [2, 4, 5]


def test_gaussians_travel_up_and_never_down(small_run: RunConfig) -> None:
    method = method_of(balanced(small_run))
    assert not any(name.startswith("prototype.") for name in method.received(1))
    assert "prototype.mean" in method.returned(1)
    arrays = method.start_task(0, {})
    assert set(method.message(0, arrays)) == set(method.received(0))


def test_heads_of_finished_tasks_are_rebalanced_too(small_run: RunConfig) -> None:
    """And the components of finished tasks stay."""
    whole = play(balanced(small_run)).final
    first = play(
        balanced(small_run, "dataset.keep.classes=2 dataset.classes=2 schedule.tasks=1 schedule.rounds=2")
    ).final
    assert np.array_equal(whole["coda.0.prompt"], first["coda.0.prompt"])
    assert not np.array_equal(whole["head.0.weight"], first["head.0.weight"])
    assert set(whole["prototype.classes"].tolist()) <= set(range(6))


def test_components_without_attention_are_weighted_by_the_plain_cosine(small_run: RunConfig) -> None:
    query, key = torch.randn(3, 8), torch.randn(5, 2, 8)
    found = component_weights(query, key)
    for block in range(2):
        expected = F.cosine_similarity(query[:, None], key[None, :, block], dim=2)
        assert torch.allclose(found[:, block], expected, atol=1e-6)
    assert method_of(balanced(small_run)).structure.trained(1) == ("coda.1.prompt", "coda.1.key")


@pytest.mark.parametrize(
    "rule", ["aggregation.rule=median", "aggregation.clip_prototypes=1", "wire.full=true"]
)
def test_it_runs_with_robust_rules_and_full_messages(small_run: RunConfig, rule: str) -> None:
    notes = play(balanced(small_run, f"schedule.rounds=3 {rule}"))
    assert all(np.isfinite(value).all() for value in notes.final.values())


@pytest.mark.parametrize(
    "wrong", ["method.head=private", "method.prototypes.share=false", "fidelity=released"]
)
def test_what_has_no_meaning_is_refused(small_run: RunConfig, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong.split("=")[0]):
        method_of(balanced(small_run, wrong))
