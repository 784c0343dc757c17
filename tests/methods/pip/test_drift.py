"""pip-drift: what clients send when a task ends, what the server makes of it, what can go wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pip_flower.config.schema import ConfigError
from pip_flower.flower.records import ARRAYS, from_record, to_record
from pip_flower.method import ClientJob, Contribution, RejectedError, Round
from pip_flower.methods.moments import moments_of
from pip_flower.methods.pip.discriminant import linear_drift, mean_drift
from pip_flower.methods.pip.drift import DriftingPIP
from pip_flower.methods.pip.task_moments import TaskMoments
from support.killing import outcome, serve_here
from support.local_grid import LocalGrid
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]
EVERY = "federation.clients_per_round=4"


def drifting(small_run: RunConfig, overrides: str = "") -> RunConfig:
    return small_run | {
        "method": "pip-drift",
        "overrides": f"{small_run['overrides']} training.epochs=1 {overrides}",
    }


def method_of(run_config: RunConfig) -> DriftingPIP:
    method = strategy_for(run_config).method
    assert isinstance(method, DriftingPIP)
    return method


def test_the_head_is_the_discriminant_of_everybodys_features(small_run: RunConfig) -> None:
    """After the first task, where nothing has moved yet."""
    run_config = drifting(small_run, "schedule.tasks=1 schedule.rounds=2 method.drift.shrinkage=0.3")
    final = play(run_config).final
    method = method_of(run_config)
    samples = method.workspace.data.train
    state = {name: torch.from_numpy(np.array(value)) for name, value in final.items()}
    features = method.latest_features(state, samples, 0).numpy().astype(np.float64)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(features, samples.labels)
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(final["discriminant.weight"] / scale, reference.coef_ / scale, atol=1e-4)
    assert final["gaussian.count"].sum() == len(samples)


@pytest.mark.parametrize("transport", ["none", "shift", "linear"])
def test_gaussians_of_old_classes_move_as_everybodys_new_images_did(transport: str) -> None:
    """From ten clients' sums, as from all images of the second task in one place (real digits)."""
    run_config = {
        "experiment": "digits",
        "method": "pip-drift",
        "overrides": f"dataset.keep.train=60 method.drift.transport={transport} method.drift.ridge=0.1",
    }
    method = method_of(run_config)
    conclusion, workspace = method.conclusion, method.workspace
    assert conclusion is not None
    arrays = dict(method.start_task(0, {}))
    rng = np.random.default_rng(0)
    for task in range(2):
        if task:
            before = arrays["prompt"]
            change = rng.normal(size=arrays["prompt"].shape).astype(np.float32)
            arrays["prompt"] = before + 0.5 * change
        replies = []
        for client in range(10):
            received = {name: arrays[name] for name in conclusion.received(task)}
            job = ClientJob(1, task, client, received, method.samples(task, client, 1))
            replies.append(Contribution(client, 1, conclusion.fit(job)))
        arrays |= conclusion.merge(Round(1, task, starts_task=True, ends_task=True), replies, arrays)
        was = np.array(arrays.get("gaussian.mean", 0))
        arrays |= method.end_task(task, arrays)
    train = workspace.data.train
    images = train.take(workspace.tasks.rows(train.labels, 1))
    old, new = (
        method.latest_features({"prompt": torch.from_numpy(prompt)}, images, 1).numpy()
        for prompt in (before, arrays["prompt"])
    )
    drift = moments_of(new, np.zeros(len(new), dtype=np.int64), 1, old).drift
    assert drift is not None
    by = {"none": None, "shift": mean_drift(drift), "linear": linear_drift(drift, 0.1)}[transport]
    np.testing.assert_allclose(
        arrays["gaussian.mean"][:2], was if by is None else by.apply(was), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "options",
    [
        "covariance=diagonal transport=shift",
        "covariance=low-rank rank=3 transport=shift dtype=float16",
        "covariance=low-rank rank=300 transport=linear",
        "covariance=full transport=linear tuning=held-out",
        "covariance=diagonal transport=none tuning=held-out",
        "covariance=full transport=linear dtype=float16 shrinkage=0.05 ridge=0.001",
    ],
)
def test_every_option_runs_and_learns(small_run: RunConfig, options: str) -> None:
    overrides = " ".join(f"method.drift.{option}" for option in options.split())
    notes = play(drifting(small_run, overrides))
    assert all(np.isfinite(value).all() for value in notes.final.values())
    assert np.mean(notes.evaluations[-1].accuracies) > 100 / 6


def test_tasks_of_one_class(small_run: RunConfig) -> None:
    run_config = drifting(small_run, "schedule.tasks=6 schedule.rounds=6 partition.class_fraction=1")
    notes = play(run_config)
    assert len(notes.evaluations) == 6
    assert notes.final["discriminant.bias"].shape == (6,)


def test_prediction_needs_no_query(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    method = method_of(drifting(small_run))

    def refuse(*_: Any) -> Any:
        raise AssertionError("a query was computed")

    monkeypatch.setattr(type(method.workspace), "queries", refuse)
    play(drifting(small_run))


def bad(grid: LocalGrid, change: Callable[[dict[str, Any]], None], partition: int = 1) -> None:
    """One client whose sums are changed on the way."""
    replying = grid.reply_to

    def reply_to(message: Message) -> Message:
        reply = replying(message)
        node = grid.contexts[message.metadata.dst_node_id]
        ends = message.content.config_records["config"].get("phase") == "conclude"
        if ends and node.node_config["partition-id"] == partition:
            arrays = from_record(reply.content.array_records[ARRAYS])
            change(arrays)
            reply.content[ARRAYS] = to_record(arrays)
        return reply

    grid.reply_to = reply_to  # type: ignore[method-assign]


def negative(arrays: dict[str, Any]) -> None:
    arrays["all.scatter"] = -arrays["all.scatter"]


def many(arrays: dict[str, Any]) -> None:
    arrays["all.count"] = arrays["all.count"] * 1000


def huge(arrays: dict[str, Any]) -> None:
    arrays["all.mean"] = np.full_like(arrays["all.mean"], 1e12)


def unknown(arrays: dict[str, Any]) -> None:
    arrays["all.mean"] = np.full_like(arrays["all.mean"], np.nan)


@pytest.mark.parametrize("change", [negative, many, huge, unknown])
def test_sums_that_cannot_be_are_not_used(small_run: RunConfig, change: Any) -> None:
    run_config = drifting(small_run, "schedule.tasks=1 schedule.rounds=1")
    grid = LocalGrid(4, run_config)
    bad(grid, change)
    spoilt = play(run_config, grid).final
    absent = LocalGrid(4, run_config)
    bad(absent, lambda arrays: arrays.clear())
    assert digest(spoilt) == digest(play(run_config, absent).final)


def test_robust_rules_bound_a_plausible_lie(small_run: RunConfig) -> None:
    def lie(arrays: dict[str, Any]) -> None:
        arrays["all.mean"] = arrays["all.mean"] + 50.0

    moved = {}
    for rule in ("mean", "median"):
        run_config = drifting(
            small_run,
            f"schedule.tasks=1 schedule.rounds=1 aggregation.rule={rule} partition.class_fraction=1",
        )
        honest = play(run_config).final["gaussian.mean"]
        grid = LocalGrid(4, run_config)
        bad(grid, lie)
        moved[rule] = np.abs(play(run_config, grid).final["gaussian.mean"] - honest).max()
    assert moved["median"] < moved["mean"] / 2


def test_a_class_whose_holders_are_all_away_has_its_prototype(small_run: RunConfig) -> None:
    run_config = drifting(small_run, f"schedule.tasks=1 schedule.rounds=1 {EVERY}")
    grid = LocalGrid(4, run_config)
    replying = grid.reply_to
    method = method_of(run_config)
    holders = [c for c in range(4) if 0 in method.workspace.client_samples(0, c, "train").labels]

    def vanish(message: Message) -> Message:
        node = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if message.content.config_records["config"].get("phase") == "conclude" and node in holders:
            raise_in = grid.contexts[message.metadata.dst_node_id]
            grid.broken.add(raise_in.node_id)
            reply = replying(message)
            grid.broken.discard(raise_in.node_id)
            return reply
        return replying(message)

    grid.reply_to = vanish  # type: ignore[method-assign]
    if len(holders) == 4:
        pytest.skip("everybody holds class 0 here")
    final = play(run_config, grid).final
    row = list(final["prototype.classes"]).index(0)
    np.testing.assert_allclose(final["gaussian.mean"][0], final["prototype.mean"][row], rtol=1e-6)
    assert final["gaussian.count"][0] == 1


def test_a_run_that_is_stopped_in_the_new_phase_ends_with_the_same_bytes(
    small_run: RunConfig, tmp_path: Path
) -> None:
    run_config = drifting(small_run) | {"out-dir": str(tmp_path / "runs")}
    whole = outcome(serve_here(run_config))
    for stop in (0, 2, 5):
        grid = LocalGrid(4, run_config)
        replying, seen = grid.reply_to, [0]

        def stopping(
            message: Message, replying: Any = replying, seen: Any = seen, stop: int = stop
        ) -> Message:
            if message.content.config_records["config"].get("phase") == "conclude":
                seen[0] += 1
                if seen[0] > stop:
                    raise KeyboardInterrupt
            return replying(message)

        grid.reply_to = stopping  # type: ignore[method-assign]
        parent = tmp_path / f"stopped-{stop}"
        stopped = run_config | {"out-dir": str(parent)}
        with pytest.raises(KeyboardInterrupt):
            serve_here(stopped, grid)
        (left,) = parent.iterdir()
        if not list((left / "checkpoints").glob("*.ckpt")):
            continue
        assert outcome(serve_here(stopped | {"resume": str(left)})) == whole


def test_sums_that_do_not_fit_the_precision_are_said(small_run: RunConfig) -> None:
    conclusion = method_of(drifting(small_run, "method.drift.dtype=float16")).conclusion
    assert isinstance(conclusion, TaskMoments)
    with pytest.raises(OverflowError, match=r"method\.drift\.dtype=float32"):
        conclusion.wire._rounded("mean", np.array([1e6]))


def test_what_a_client_sends_is_as_long_as_promised(small_run: RunConfig) -> None:
    """Symmetric matrices travel once."""
    for overrides, per_dim in (
        ("transport=linear covariance=full", lambda d: 2 * d * (d + 1) // 2 + d * d + 2 * d),
        ("transport=shift covariance=full", lambda d: d * (d + 1) // 2 + d),
        ("transport=shift covariance=low-rank rank=2", lambda d: 2 * d + d + d),
    ):
        options = " ".join(f"method.drift.{option}" for option in overrides.split())
        method = method_of(drifting(small_run, options))
        conclusion, dim = method.conclusion, method.workspace.backbone.dim
        assert conclusion is not None
        specs = conclusion.expected(1, {}, 1)
        classes = len(method.workspace.tasks.classes[1])
        sent = sum(int(np.prod([size or 0 for size in spec.shape])) for spec in specs.values())
        assert sent == per_dim(dim) + classes * (dim + 1)


def test_only_its_own_samples_are_summed(small_run: RunConfig) -> None:
    run_config = drifting(small_run)
    method = method_of(run_config)
    conclusion = method.conclusion
    assert conclusion is not None
    arrays = method.start_task(0, {})
    samples = method.samples(0, 2, 1)
    update = conclusion.fit(ClientJob(1, 0, 2, {"prompt": arrays["prompt"]}, samples))
    assert update.arrays["all.count"].sum() == len(samples) == update.samples
    conclusion.inspect(0, update.arrays, len(samples))
    with pytest.raises(RejectedError, match="adds up to more"):
        conclusion.inspect(0, update.arrays, len(samples) - 1)


@pytest.mark.parametrize(
    ("overrides", "told"), [("method.head=private", "method.head"), ("fidelity=released", "fidelity")]
)
def test_what_has_no_meaning_is_refused(small_run: RunConfig, overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        method_of(drifting(small_run, overrides))
