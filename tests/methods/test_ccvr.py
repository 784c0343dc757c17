"""CCVR: pooled Gaussians, draws from them, and the head that is fitted to the draws."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.method import ClientJob, ClientUpdate, Contribution, RejectedError, Round
from pip_flower.methods.ccvr import CCVR
from pip_flower.methods.class_gaussians import as_arrays, covariance, draw, from_arrays
from pip_flower.methods.moments import Moments, moments_of, pool
from pip_flower.methods.refit import RefitOptions, refit
from support.networks import full
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]


def gaussian_of(features: np.ndarray) -> Moments:
    return moments_of(features, np.zeros(len(features), dtype=np.int64), 1)


def method_of(small_run: RunConfig, overrides: str = "") -> CCVR:
    method = strategy_for(full(small_run, "ccvr", overrides)).method
    assert isinstance(method, CCVR)
    return method


@given(owners=st.lists(st.integers(0, 4), min_size=2, max_size=30), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_pooled_gaussians_are_those_of_all_samples(owners: list[int], seed: int) -> None:
    """mu_c = sum n mu / N and S_c = sum [(n - 1) S + n mu mu'] / (N - 1) - N / (N - 1) mu_c mu_c', whoever
    holds which sample."""
    features = np.random.default_rng(seed).normal(size=(len(owners), 4))
    parts = [gaussian_of(features[np.array(owners) == owner]) for owner in set(owners)]
    sent = [from_arrays(as_arrays([part]), 4)[0] for part in parts]
    pooled = pool(sent)
    np.testing.assert_allclose(pooled.mean[0], features.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(covariance(pooled), np.cov(features.T), atol=1e-4)
    n = [float(part.count[0]) for part in parts]
    outer = [np.outer(part.mean[0], part.mean[0]) for part in parts]
    terms = sum((k - 1) * covariance(part) + k * o for k, part, o in zip(n, parts, outer, strict=True))
    mean, total = features.mean(axis=0), sum(n)
    paper = terms / (total - 1) - total / (total - 1) * np.outer(mean, mean)
    np.testing.assert_allclose(covariance(pooled), paper, atol=1e-4)


def test_draws_have_the_mean_and_covariance_of_the_class() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3)) + 5
    drawn = draw(gaussian_of(features), 200_000, torch.Generator().manual_seed(1)).numpy()
    np.testing.assert_allclose(drawn.mean(axis=0), features.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(features.T), rtol=0.05, atol=0.05)


def test_a_single_sample_is_drawn_as_it_is() -> None:
    feature = np.array([[1.0, 2.0, 3.0]])
    drawn = draw(gaussian_of(feature), 4, torch.Generator().manual_seed(1))
    assert torch.allclose(drawn, torch.tensor([[1.0, 2.0, 3.0]] * 4))


def test_refitting_lets_biased_rows_compete() -> None:
    """Rows of a newer task that always win lose their bias; with a temperature as well."""
    options = RefitOptions(draws=100, epochs=20, batch_size=32, learning_rate=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    features = torch.cat([torch.randn(100, 2, generator=generator) * 0.3 + centre for centre in (-1.0, 1.0)])
    targets = torch.arange(2).repeat_interleave(100)
    start = (np.array([[-1.0, -1.0], [1.0, 1.0]]), np.array([0.0, 3.0]))
    for temperature in (0.0, 0.1):
        drawn = [(features, targets)] * options.epochs
        weight, bias = refit(start, drawn, options, generator, temperature=temperature, annealed=True)
        right = (features @ torch.from_numpy(weight).T + torch.from_numpy(bias)).argmax(dim=1) == targets
        assert right.float().mean() > 0.95


def test_all_classes_seen_are_refitted_and_training_is_that_of_fedavg(small_run: RunConfig) -> None:
    found = play(full(small_run, "ccvr")).final
    plain = play(full(small_run, "fedavg")).final
    assert digest({name: found[name] for name in plain}) == digest(plain)
    for task in range(3):
        assert not np.array_equal(found[f"calibrated.{task}.weight"], plain[f"head.{task}.weight"])
        assert found[f"gaussian.{task}.count"].sum() == 32


def test_a_class_without_a_gaussian_keeps_its_rows(small_run: RunConfig) -> None:
    method = method_of(small_run)
    arrays = method.start_task(0, {})
    found = method.end_task(0, arrays)
    assert np.array_equal(found["calibrated.0.weight"], arrays["head.0.weight"])


def test_what_cannot_be_is_refused(small_run: RunConfig) -> None:
    method = method_of(small_run)
    exchange = method.gaussians
    arrays = method.start_task(0, {})
    samples = method.samples(0, 1, 1)
    received = {name: arrays[name] for name in exchange.received(0)}
    reply = exchange.fit(ClientJob(1, 0, 1, received, samples)).arrays
    exchange.inspect(0, reply, len(samples))
    with pytest.raises(RejectedError, match="adds up to more"):
        exchange.inspect(0, reply, len(samples) - 1)
    with pytest.raises(RejectedError, match="not a second moment"):
        exchange.inspect(0, reply | {"covariance": -reply["covariance"]}, len(samples))
    with pytest.raises(RejectedError, match="fewer than two samples"):
        exchange.inspect(0, reply | {"count": np.zeros(2, np.int64), "mean": 0 * reply["mean"]}, len(samples))
    with pytest.raises(RejectedError, match="mean has a class"):
        exchange.inspect(0, reply | {"count": np.zeros(2, np.int64)}, len(samples))


def test_robust_rules_bound_a_lie(small_run: RunConfig) -> None:
    honest = as_arrays([gaussian_of(np.random.default_rng(k).normal(size=(9, 512))) for k in range(2)])
    lie = honest | {"mean": honest["mean"] + 100}
    moved = {}
    for rule in ("mean", "median"):
        exchange = method_of(small_run, f"aggregation.rule={rule}").gaussians
        replies = [
            Contribution(k, 1, ClientUpdate(dict(given), 18, {}))
            for k, given in enumerate([honest, honest, lie])
        ]
        merged = exchange.merge(Round(1, 0, starts_task=True, ends_task=True), replies, {})
        moved[rule] = np.abs(merged["gaussian.0.mean"] - honest["mean"]).max()
    assert moved["median"] < 1e-5 < moved["mean"]
