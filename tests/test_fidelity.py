"""Each point at which the released code differs from the paper: what it does, and that it matters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pip_flower import prototypes
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.batches import own_batches
from pip_flower.fidelity import Paper, Released, fidelity_named
from pip_flower.method.configuration import load_config
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.pip import PIP
from pip_flower.methods.pip.training import PromptTrainer
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts.dualprompt import DualPrompt
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.runtime.streams import stream
from support.toy import images, toy_backbone, toy_state, toy_structure, toy_trainer

PAPER, RELEASED = Paper(), Released()


def test_the_configuration_names_them() -> None:
    assert type(fidelity_named("paper")) is Paper
    assert type(fidelity_named("released")) is Released


def test_client_weight() -> None:
    assert PAPER.client_weight(participations=3, samples=50) == 150
    assert RELEASED.client_weight(participations=3, samples=50) == 3


def test_global_variance() -> None:
    shares, means = np.array([[0.25], [0.75]]), np.array([[0.0], [4.0]])
    given = shares, means, np.array([[1.0], [1.0]]), np.array([3.0])
    assert PAPER.global_variance(*given).tolist() == [4.0]
    assert RELEASED.global_variance(*given).tolist() == [-9.0]


def test_batch_variance() -> None:
    features = np.array([[0.0], [2.0]])
    assert PAPER.batch_variance(features).tolist() == [1.0]
    assert RELEASED.batch_variance(features).tolist() == [2.0]
    assert PAPER.batch_variance(features[:1]).tolist() == [0.0]
    assert np.isnan(RELEASED.batch_variance(features[:1])).all()


def test_variance_of_several_batches() -> None:
    features, labels = np.random.default_rng(0).normal(size=(8, 2)), np.zeros(8, dtype=np.int64)
    found = {
        fidelity.name: prototypes.pool(
            [prototypes.summarise(features[rows], labels[rows], fidelity) for rows in (slice(3), slice(3, 8))]
        ).variance[0]
        for fidelity in (PAPER, RELEASED)
    }
    assert np.allclose(found["paper"], features.var(axis=0))
    assert (found["released"] > found["paper"] * 1.05).all()


def test_augmentation() -> None:
    mean, variance = np.zeros((2, 3)), np.full((2, 3), 4.0)
    drawn, rows = PAPER.augment(mean, variance, np.array([3, 0]), np.random.default_rng(0))
    assert rows.tolist() == [0, 0, 0]
    assert ((drawn > 0) & (drawn < 2)).all()
    assert np.array_equal(drawn, np.repeat(drawn[:, :1], 3, axis=1))
    pairs, rows = RELEASED.augment(mean, variance, np.array([3, 0]), np.random.default_rng(0))
    assert rows.tolist() == [0, 1, 0, 1]
    assert np.array_equal(pairs[:2], -pairs[2:])
    # var^2 / 3 = 16 / 3 bounds the step, and every dimension has its own.
    assert np.abs(pairs).max() > 2
    assert np.abs(pairs).max() < 16 / 3
    assert len(np.unique(pairs)) == 12


@pytest.mark.parametrize("batch", [4, 5])
def test_expert_layout(batch: int) -> None:
    stored = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1, 1, 1)
    received = RELEASED.expert_layout(stored, batch).flatten(1).tolist()
    middle = [[0.0, 1.0]] if batch % 2 else []
    assert received == [[0.0, 0.0]] * (batch // 2) + middle + [[1.0, 1.0]] * (batch // 2)
    assert PAPER.expert_layout(stored, batch).flatten(1).tolist() == [[0.0, 1.0]]


def test_expert_layout_reaches_the_features() -> None:
    backbone = toy_backbone()
    paper, released = (toy_structure(fidelity=name, backbone=backbone) for name in ("paper", "released"))
    state = toy_state(released)
    found = [
        structure.forward(state, images(4), None, task=1, tasks=2).features for structure in (paper, released)
    ]
    assert not torch.allclose(*found, atol=1e-2)


def test_selection_is_a_vote() -> None:
    assert toy_structure().selection == "sample"
    assert toy_structure(selection="batch").selection == "batch"
    assert toy_structure(fidelity="released").selection == "batch"


def test_both_votes_choose_the_same_prompts() -> None:
    choices = torch.tensor([[1, 4], [4, 7], [4, 1], [7, 2]])
    assert PAPER.vote(choices, 10, 3).tolist() == [4, 1, 7]
    assert sorted(RELEASED.vote(choices, 10, 3).tolist()) == [1, 4, 7]


def test_pool_of_ten_slots() -> None:
    structure = toy_structure(fidelity="released")
    assert isinstance(structure, DualPrompt)
    state = toy_state(structure, tasks=12)
    assert {name for name in state if name.startswith("key.")} == {f"key.{slot}" for slot in range(10)}
    assert structure.trained(9) == ("general", "expert.9", "key.9")
    # Task 11 has no slot of its own: it chooses among all ten and trains whichever it gets.
    assert len(structure.trained(11)) == 21
    query = structure.backbone.query(images(6))
    trainer = toy_trainer(structure, state, task=11)
    prompted = structure.forward(trainer.state, images(6), query, task=11, tasks=12)
    prompted.features.sum().backward()
    trained = [slot for slot in range(10) if trainer.state[f"expert.{slot}"].grad.abs().sum() > 0]
    assert len(trained) == 1
    assert toy_structure().trained(11) == ("general", "expert.11", "key.11")


def test_both_cross_entropies_agree() -> None:
    features, targets = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 2])
    head = torch.randn(3, 3), torch.randn(3)
    paper, released = (f.cross_entropy(features, head, targets, (4, 2)) for f in (PAPER, RELEASED))
    assert torch.allclose(paper, released)


def test_query_of_the_augmented_view() -> None:
    assert PAPER.query("cached") == "cached"
    assert RELEASED.query("cached") == "augmented"


def test_head_is_averaged_in_the_last_round_only() -> None:
    assert [PAPER.averages_head(last) for last in (False, True)] == [True, True]
    assert [RELEASED.averages_head(last) for last in (False, True)] == [False, True]


@pytest.fixture
def method(request: pytest.FixtureRequest, small_run: dict[str, Any]) -> Iterator[PIP]:
    """PIP-DualPrompt on six classes of digits, in the fidelity that the test asks for."""
    made = make_method(Workspace(_config(small_run, request.param)))
    assert isinstance(made, PIP)
    return made


def _config(small_run: dict[str, Any], fidelity: str) -> Config:
    run = {**small_run, "overrides": f"{small_run['overrides']} fidelity={fidelity}"}
    return load_config(Selection.from_run_config(run))


def _fit(method: PIP, arrays: dict[str, Any], memory: Any, round_: int = 1) -> ClientUpdate:
    sent = {**arrays, **prototypes.empty(method.workspace.backbone.dim).as_arrays()}
    samples = method.workspace.client_samples(0, 0, "train")
    return method.fit(ClientJob(round_, 0, 0, sent, samples, memory))


@pytest.mark.parametrize(("method", "kept"), [("paper", False), ("released", True)], indirect=["method"])
def test_head_and_optimizer_that_stay_with_the_client(method: PIP, kept: bool) -> None:
    arrays = method.start_task(0, {})
    first = _fit(method, arrays, {})
    weight = LinearHead(0).names(0)[0]
    assert (weight in first.memory) is kept
    assert any(name.startswith("adam.") for name in first.memory) is kept
    again, anew = (_fit(method, arrays, memory, round_=2) for memory in (first.memory, {}))
    assert np.array_equal(again.arrays[weight], anew.arrays[weight]) is not kept


@pytest.mark.parametrize(("method", "view"), [("paper", "test"), ("released", "train")], indirect=["method"])
def test_view_that_prototypes_are_taken_from(method: PIP, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("test", "train"):
        original = getattr(method.workspace.views, name)
        monkeypatch.setattr(
            method.workspace.views,
            name,
            lambda *a, name=name, original=original: seen.append(name) or original(*a),
        )
    _fit(method, method.start_task(0, {}), {})
    # The prototype pass is the last thing a client does.
    assert seen[-1] == view


@pytest.mark.parametrize(("fidelity", "calls"), [("paper", 3), ("released", 0)])
def test_released_queries_are_never_those_of_the_deterministic_view(
    fidelity: str, calls: int, small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2P needs queries in both epochs and in the prototype pass."""
    l2p = make_method(Workspace(_config({**small_run, "method": "pip-l2p"}, fidelity)))
    assert isinstance(l2p, PIP)
    asked: list[int] = []
    original = l2p.workspace.queries
    monkeypatch.setattr(l2p.workspace, "queries", lambda given: asked.append(len(given)) or original(given))
    monkeypatch.setattr(l2p.sharing, "injects_own", lambda: False)
    _fit(l2p, l2p.start_task(0, {}), {})
    assert len(asked) == calls


@pytest.mark.parametrize(("method", "injects"), [("paper", True), ("released", False)], indirect=["method"])
def test_own_prototypes_in_the_first_round(
    method: PIP, injects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[int] = []
    original = method.sharing.injection
    monkeypatch.setattr(
        method.sharing, "injection", lambda known, *a: tables.append(len(known)) or original(known, *a)
    )
    _fit(method, method.start_task(0, {}), {})
    assert tables[0] == 0
    assert (tables[1] > 0) is injects


@pytest.mark.parametrize(("method", "columns"), [("paper", 2), ("released", 6)], indirect=["method"])
def test_classes_that_compete_at_test_time(method: PIP, columns: int) -> None:
    arrays = {name: torch.from_numpy(value) for name, value in method.start_task(0, {}).items()}
    scores = method.scores(arrays, method.workspace.test_samples(0), tasks=1)
    assert scores.shape[1] == columns == len(method.candidates(1))
    rows = LinearHead(0).names(1)[0]
    assert rows not in method.predicting(1)


@pytest.mark.parametrize(("method", "resets"), [("paper", False), ("released", True)], indirect=["method"])
def test_start_of_a_slot_in_a_later_round(method: PIP, resets: bool) -> None:
    strategy = TaskStrategy(method)
    for task in (0, 1):
        strategy.arrays |= method.start_task(task, strategy.arrays)
    strategy.arrays["expert.1"] = np.zeros_like(strategy.arrays["expert.1"])
    strategy.arrays |= method.start_round(1, strategy.arrays)
    sent = strategy.method.message(1, strategy.arrays)["expert.1"]
    assert np.array_equal(sent, strategy.arrays["expert.0"]) is resets
    assert (not sent.any()) is not resets


@pytest.mark.parametrize(
    ("method", "weights"), [("paper", (10, 60)), ("released", (1, 2))], indirect=["method"]
)
def test_weights_that_the_server_uses(method: PIP, weights: tuple[int, int]) -> None:
    found = [
        method.weight(Contribution(0, rho, ClientUpdate({}, samples, {})))
        for rho, samples in ((1, 10), (2, 30))
    ]
    assert tuple(found) == weights


def test_queries_are_bit_for_bit_the_same_from_a_warm_cache_and_in_any_company(
    small_run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workspace(name: str) -> Workspace:
        monkeypatch.setenv("PIP_FLOWER_CACHE", str(tmp_path / name))
        return Workspace(_config(small_run, "paper"))

    samples = workspace("first").data.train
    cold = workspace("first").queries(samples)
    order = stream(0, "company").permutation(len(samples))
    second = workspace("second")
    pieces = [second.queries(samples.take(part)) for part in np.split(order, [1, 4, 30])]
    assert torch.equal(torch.cat(pieces), cold[order])
    monkeypatch.setattr(Workspace, "_fresh_queries", lambda *_: pytest.fail("computed again"))
    assert torch.equal(workspace("first").queries(samples), cold)


def test_released_clients_draw_their_classes_anew_in_every_round(small_run: dict[str, Any]) -> None:
    """Paper: a fixed, disjoint partition. Released: all samples of the classes drawn in this round."""
    overrides = "schedule.tasks=1 schedule.rounds=2 partition.class_fraction=0.5"
    held = {}
    for name in ("paper", "released"):
        run_config = small_run | {"overrides": f"{small_run['overrides']} {overrides} fidelity={name}"}
        made = make_method(Workspace(load_config(Selection.from_run_config(run_config))))
        held[name] = [[set(made.samples(0, client, r).ids) for client in range(4)] for r in (1, 2, 3)]
    paper, released = held["paper"], held["released"]
    assert paper[0] == paper[1] == paper[2]
    assert sum(map(len, paper[0])) == len(set.union(*paper[0])) == 96
    assert all(len(ids) == 3 * 16 for clients in released for ids in clients)
    assert released[0] != released[1]
    assert set.intersection(*released[0][:2]) or set.intersection(*released[0][2:])


def test_batches_of_the_released_code_are_cut_from_the_whole_task() -> None:
    rng = np.random.default_rng(0)
    assert sorted(PAPER.batch_order(4, 10, rng)) == list(range(4))
    order = RELEASED.batch_order(4, 10, rng)
    assert sorted(order) == list(range(10))
    found = own_batches(order, 5, 4)
    assert [batch.tolist() for batch in found] == [
        [r for r in part if r < 4] for part in (order[:5], order[5:])
    ]
    assert own_batches(np.array([7, 8, 1, 9]), 2, 4)[0].tolist() == [1]


@pytest.mark.parametrize(("method", "count"), [("paper", 2), ("released", 4)], indirect=["method"])
def test_steps_of_an_epoch(method: PIP, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with 16 of a task's 32 samples, in batches of 8: two full ones, or four of about half the
    size; the classes of others never reach a step."""
    samples = method.workspace.data.train.take(np.arange(16))
    assert set(samples.labels) == {0}
    steps: list[int] = []
    original = PromptTrainer.loss
    monkeypatch.setattr(
        PromptTrainer,
        "loss",
        lambda self, batch, *a: steps.append(len(batch.targets)) or original(self, batch, *a),
    )
    sent = {**method.start_task(0, {}), **prototypes.empty(method.workspace.backbone.dim).as_arrays()}
    method.fit(ClientJob(1, 0, 0, sent, samples, {}))
    first, second = steps[:count], steps[count:]
    assert len(second) == count
    assert sum(first) == sum(second) == 16
    # Shuffled anew in every epoch.
    assert (first == second) is (count == 2)


@pytest.mark.parametrize(("method", "count"), [("paper", 1), ("released", 4)], indirect=["method"])
def test_batches_that_prototypes_are_taken_from(
    method: PIP, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paper: as large as in evaluation, in order. Released: once more those of training, whose variances
    are then merged."""
    samples = method.workspace.data.train.take(np.arange(24))
    seen: list[int] = []
    original = prototypes.summarise
    monkeypatch.setattr(prototypes, "summarise", lambda z, *a: seen.append(len(z)) or original(z, *a))
    sent = {**method.start_task(0, {}), **prototypes.empty(method.workspace.backbone.dim).as_arrays()}
    monkeypatch.setattr(method.sharing, "injects_own", lambda: False)
    method.fit(ClientJob(1, 0, 0, sent, samples, {}))
    assert len(seen) == count
    assert sum(seen) == 24


@pytest.mark.parametrize(
    ("method", "known"), [("paper", [0, 1, 2, 3]), ("released", [0, 1, 3])], indirect=["method"]
)
def test_a_class_that_nobody_reports_in_a_round(method: PIP, known: list[int]) -> None:
    """The table of a task is kept, or rebuilt in every round; earlier tasks keep theirs."""

    def table(classes: list[int]) -> dict[str, Any]:
        rows = np.ones((len(classes), method.workspace.backbone.dim))
        return prototypes.Prototypes(np.array(classes), rows, rows, np.ones(len(classes))).as_arrays()

    merged = method.sharing.merged(1, [table([3])], [1.0], table([0, 1, 2, 3]))
    assert merged["prototype.classes"].tolist() == known


def test_settings_of_the_released_code_come_with_it_and_can_be_overridden() -> None:
    config = load_config(Selection(overrides="fidelity=released"))
    assert (config.training.learning_rate, config.training.batch_size) == (0.015, 128)
    assert config.training.learning_rate == 0.03 * config.training.batch_size / 256
    assert (config.evaluation.batch_size, config.dataset.normalize) == (128, "none")
    assert load_config(Selection()).evaluation.batch_size == 256
    changed = load_config(Selection(overrides="training.learning_rate=0.1 fidelity=released"))
    assert (changed.training.learning_rate, changed.training.batch_size) == (0.1, 128)


@pytest.mark.parametrize("method", ["fedavg", "icarl", "ncm", "ranpac", "frozen-head", "joint", "pip-align"])
def test_what_was_never_released_is_refused(method: str) -> None:
    with pytest.raises(
        ConfigError, match=r"fidelity \(set in overrides\): 'released' .* Give fidelity=paper"
    ):
        load_config(Selection(method=method, overrides="fidelity=released"))


def test_test_images_vote_in_batches_of_the_configured_size(
    small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {**small_run, "overrides": f"{small_run['overrides']} fidelity=released evaluation.batch_size=5"}
    method = make_method(Workspace(load_config(Selection.from_run_config(run))))
    assert isinstance(method, PIP)
    votes: list[int] = []
    original = method.fidelity.vote
    monkeypatch.setattr(
        method.structure.fidelity,
        "vote",
        lambda choices, *a: votes.append(len(choices)) or original(choices, *a),
    )
    arrays = {name: torch.from_numpy(value) for name, value in method.start_task(0, {}).items()}
    method.scores(arrays, method.workspace.test_samples(0), tasks=1)
    assert votes == [5, 5, 2]
