from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.method import ClientJob
from pip_flower.method.reply_checks import RejectedError
from pip_flower.methods.moments import nearest_moment, packed, unpacked
from pip_flower.methods.ranpac import best_ridge
from support.local_grid import LocalGrid
from support.runs import Notes, play, strategy_for

RunConfig = dict[str, Any]
M60 = "method.features=60"


def run(small_run: RunConfig, method: str, clients: int, overrides: str = "") -> Notes:
    everybody = f"federation.clients={clients} federation.clients_per_round={clients} schedule.rounds=3"
    return play(
        small_run | {"method": method, "overrides": f"{small_run['overrides']} {everybody} {overrides}"}
    )


@pytest.mark.parametrize(("method", "classifier"), [("ncm", "mean.2"), ("ranpac", "head"), ("lda", "weight")])
def test_any_partition_gives_the_classifier_of_the_pooled_data(
    small_run: RunConfig, method: str, classifier: str
) -> None:
    small = M60 if method == "ranpac" else ""
    alone = run(small_run, method, 1, small)
    for other in (
        run(small_run, method, 4, small),
        run(small_run, method, 3, f"{small} partition.scheme=iid"),
    ):
        assert other.final[classifier] == pytest.approx(alone.final[classifier], rel=1e-7, abs=1e-9)
        assert [e.accuracies for e in other.evaluations] == [e.accuracies for e in alone.evaluations]


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_lda_is_that_of_the_pooled_features(small_run: RunConfig, covariance: str) -> None:
    options = f"method.covariance={covariance} method.shrinkage=0.3"
    final = run(small_run, "lda", 4, options).final
    method = strategy_for(small_run | {"method": "lda"}).method
    train = method.workspace.data.train
    features = method.workspace.queries(train).numpy().astype(np.float64)
    seen = method.workspace.tasks.seen(3)
    means = np.stack([features[train.labels == label].mean(axis=0) for label in seen])
    centred = features - means[[seen.index(label) for label in train.labels]]
    common = centred.T @ centred / len(centred)
    if covariance == "diagonal":
        common = np.diag(np.diag(common))
    size = np.trace(common) / len(common)
    inverse = np.linalg.inv(0.7 * common + 0.3 * size * np.eye(len(common)))
    assert final["weight"] == pytest.approx(means @ inverse, rel=1e-6, abs=1e-8)
    assert final["bias"] == pytest.approx(-0.5 * np.sum(means @ inverse * means, axis=1), rel=1e-6)


def test_lda_refuses_moments_that_samples_cannot_have(small_run: RunConfig) -> None:
    method = strategy_for(small_run | {"method": "lda"}).method
    job = ClientJob(1, 0, 1, {}, method.samples(0, 1, 1))
    reply = dict(method.fit(job).arrays)
    method.inspect(0, reply, len(job.samples))
    for name, change in (("second.0", 0.1), ("total.0", 2.0), ("count.0", 9.0)):
        with pytest.raises(RejectedError, match=name[:-1]):
            method.inspect(0, reply | {name: change * np.asarray(reply[name])}, len(job.samples))


@given(size=st.integers(1, 12), seed=st.integers(0, 10_000))
def test_a_symmetric_matrix_is_its_upper_triangle(size: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(size + 3, size))
    gram = rows.T @ rows
    triangle = packed(gram)
    assert len(triangle) == size * (size + 1) // 2
    assert np.array_equal(unpacked(triangle, size), gram)
    assert np.array_equal(packed(unpacked(triangle, size)), triangle)


@given(
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    order=st.permutations(range(5)),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=50, deadline=None)
def test_triangles_of_any_partition_add_up_to_the_pooled_second_moment(
    owners: list[int], order: list[int], seed: int
) -> None:
    features = np.maximum(np.random.default_rng(seed).normal(size=(len(owners), 6)), 0.0)
    parts = [features[np.array(owners) == owner] for owner in order]
    total = sum((packed(part.T @ part) for part in parts), np.zeros(21))
    assert unpacked(total, 6) == pytest.approx(features.T @ features, rel=1e-12, abs=1e-12)


def test_half_a_symmetric_matrix_travels(small_run: RunConfig) -> None:
    grid = LocalGrid(4, small_run | {"method": "ranpac", "overrides": f"{small_run['overrides']} {M60}"})
    notes = play(small_run | {"method": "ranpac", "overrides": f"{small_run['overrides']} {M60}"}, grid)
    assert notes.final["gram.fit"].shape == (60, 60)
    assert np.array_equal(notes.final["gram.fit"], notes.final["gram.fit"].T)
    # Two triangles, two columns of labels and two counts of each of both parts; what is left is envelope.
    numbers = 2 * (60 * 61 // 2 + 60 * 2 + 1 + 2)
    for record in notes.rounds:
        if record.clients:
            assert 8 * numbers < record.traffic_up.per_message < 8 * numbers + 2500


def test_a_negative_square_is_refused(small_run: RunConfig) -> None:
    method = strategy_for(
        small_run | {"method": "ranpac", "overrides": f"{small_run['overrides']} {M60}"}
    ).method
    arrays = method.start_task(0, {})
    reply = {name: np.zeros(spec.shape) for name, spec in method.expected(0, arrays, 5).items()}
    method.inspect(0, reply, 5)
    reply["gram.held"][60] = -1.0  # row 1, column 1
    with pytest.raises(RejectedError, match="gram.held is not a second moment"):
        method.inspect(0, reply, 5)
    reply["gram.held"][60], reply["gram.held"][59] = 0.0, -1.0  # row 0, column 59
    method.inspect(0, reply, 5)


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


def test_the_nearest_second_moment_has_no_negative_direction() -> None:
    assert nearest_moment(np.array([[1.0, 2.0], [2.0, 1.0]])) == pytest.approx(np.full((2, 2), 1.5))
    rows = np.random.default_rng(0).normal(size=(9, 3))
    slanted = rows.T @ rows + np.array([[0.0, 0.2, 0.0], [-0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert nearest_moment(slanted) == pytest.approx(rows.T @ rows)
