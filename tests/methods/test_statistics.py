from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.methods.ranpac import best_ridge
from support.runs import Notes, play, strategy_for

RunConfig = dict[str, Any]


def run(small_run: RunConfig, method: str, clients: int, overrides: str = "") -> Notes:
    everybody = f"federation.clients={clients} federation.clients_per_round={clients} schedule.rounds=3"
    return play(
        small_run | {"method": method, "overrides": f"{small_run['overrides']} {everybody} {overrides}"}
    )


@pytest.mark.parametrize(("method", "classifier"), [("ncm", "mean.2"), ("ranpac", "head")])
def test_any_partition_gives_the_classifier_of_the_pooled_data(
    small_run: RunConfig, method: str, classifier: str
) -> None:
    small = "method.features=60" if method == "ranpac" else ""
    alone = run(small_run, method, 1, small)
    for other in (
        run(small_run, method, 4, small),
        run(small_run, method, 3, f"{small} partition.scheme=iid"),
    ):
        assert other.final[classifier] == pytest.approx(alone.final[classifier], rel=1e-7, abs=1e-9)
        assert [e.accuracies for e in other.evaluations] == [e.accuracies for e in alone.evaluations]


def test_a_client_drawn_twice_in_a_task_counts_once(small_run: RunConfig) -> None:
    once = run(small_run, "ncm", 4)
    thrice = run(small_run, "ncm", 4, "schedule.rounds=9")
    assert all(np.array_equal(once.final[name], thrice.final[name]) for name in once.final)
    assert [len(record.clients) for record in thrice.rounds] == [4, 0, 0] * 3
    assert thrice.final["count.0"].tolist() == [16, 16]


def test_a_class_nobody_reported_cannot_win(small_run: RunConfig) -> None:
    strategy = strategy_for(small_run | {"method": "ncm"})
    method, test = strategy.method, strategy.method.workspace.test_samples(0)
    rng = np.random.default_rng(0)
    width = method.workspace.backbone.dim
    arrays = {f"mean.{task}": torch.from_numpy(rng.normal(size=(2, width))) for task in range(2)}
    arrays |= {"count.0": torch.tensor([5.0, 0.0]), "count.1": torch.tensor([0.0, 3.0])}
    scores = method.scores(arrays, test, 2)
    assert torch.isinf(scores[:, [1, 2]]).all()
    assert torch.isfinite(scores[:, [0, 3]]).all()
    assert set(scores.argmax(dim=1).tolist()) <= {0, 3}


def test_the_ridge_is_the_one_of_least_error_on_held_out_samples() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(8, 2))
    x, held = rng.normal(size=(20, 8)), rng.normal(size=(200, 8))
    y, y_held = x @ truth + rng.normal(size=(20, 2)), held @ truth + rng.normal(size=(200, 2))
    chosen = best_ridge(x.T @ x, x.T @ y, held.T @ held, held.T @ y_held)

    def error(ridge: float) -> float:
        head = np.linalg.solve(x.T @ x + ridge * np.eye(8), x.T @ y)
        return float(((held @ head - y_held) ** 2).sum())

    assert error(chosen) == pytest.approx(min(error(10.0**k) for k in range(-8, 9)))
