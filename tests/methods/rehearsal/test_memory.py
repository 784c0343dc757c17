"""Which exemplars a client keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pip_flower.config.compose import Selection
from pip_flower.data.partition import partition_task
from pip_flower.data.samples import Samples
from pip_flower.data.tasks import split_tasks
from pip_flower.method.configuration import load_config
from pip_flower.methods.rehearsal.memory import (
    ExemplarMemory,
    MemoryOptions,
    drawn,
    herd,
    learnt_classes,
)

seeds = st.integers(0, 10_000)


def unit_features(count: int, seed: int = 0, width: int = 6) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def samples(labels: list[int], first_id: int = 100) -> Samples:
    ids = np.arange(first_id, first_id + len(labels), dtype=np.int64)
    return Samples(np.zeros((len(labels), 1, 1, 3), np.uint8), np.array(labels, dtype=np.int64), ids)


def as_lists(memory: dict[str, NDArray[np.int64]]) -> dict[str, list[int]]:
    return {name: ids.tolist() for name, ids in memory.items()}


def test_herding_by_hand() -> None:
    # The mean is 4: 4.5 is nearest, (4.5 + 3) / 2 = 3.75, (4.5 + 3 + 8) / 3 = 5.17 and not 2.67.
    line = np.array([[0.5], [3.0], [8.0], [4.5]])
    assert herd(line, 4).tolist() == [3, 1, 2, 0]
    assert herd(line, 2).tolist() == [3, 1]
    assert herd(line, 0).tolist() == []


@given(count=st.integers(1, 30), asked=st.integers(0, 40), seed=seeds)
def test_a_shorter_herd_is_a_prefix_and_none_is_picked_twice(count: int, asked: int, seed: int) -> None:
    features = unit_features(count, seed)
    shorter, longer = herd(features, asked), herd(features, asked + 1)
    assert shorter.dtype == np.int64
    assert len(shorter) == min(asked, count)
    assert len(set(longer.tolist())) == len(longer)
    assert longer[: len(shorter)].tolist() == shorter.tolist()


@given(count=st.integers(2, 12), seed=seeds)
def test_every_pick_brings_the_mean_of_those_picked_nearest(count: int, seed: int) -> None:
    features = unit_features(count, seed).astype(np.float64)
    order = herd(features, count).tolist()

    def away(chosen: list[int]) -> float:
        return float(np.linalg.norm(features[chosen].mean(axis=0) - features.mean(axis=0)))

    for k in range(count):
        others = set(range(count)) - set(order[:k])
        assert away(order[: k + 1]) <= min(away([*order[:k], row]) for row in others) + 1e-12


@given(available=st.integers(0, 30), asked=st.integers(0, 40), seed=seeds)
def test_a_shorter_draw_is_a_prefix(available: int, asked: int, seed: int) -> None:
    shorter, longer = (
        drawn(available, count, np.random.default_rng(seed)).tolist() for count in (asked, asked + 1)
    )
    assert len(shorter) == min(asked, available)
    assert longer[: len(shorter)] == shorter
    assert set(longer) <= set(range(available))
    assert len(set(longer)) == len(longer)


def test_a_draw_is_random() -> None:
    orders = {tuple(drawn(20, 5, np.random.default_rng(seed))) for seed in range(10)}
    assert len(orders) == 10


@given(
    budget=st.integers(1, 40),
    labels=st.lists(st.integers(0, 9), max_size=40),
    old=st.dictionaries(st.integers(5, 14), st.integers(0, 30), max_size=5),
    seed=seeds,
)
@settings(deadline=None)
def test_memory_is_filled_up_and_then_cut(
    budget: int, labels: list[int], old: dict[int, int], seed: int
) -> None:
    present, features = samples(labels, 1000), unit_features(len(labels), seed)
    kept = {f"exemplars.{label}": np.arange(size) + 50 * label for label, size in old.items()}

    found = ExemplarMemory(budget).updated(kept, present, features, None)

    expected = dict(kept)
    for label in sorted(set(labels)):
        members = np.flatnonzero(present.labels == label)
        expected[f"exemplars.{label}"] = present.ids[members][herd(features[members], budget)]
    share = max(1, budget // len(expected)) if expected else 0
    assert list(found) == list(expected)
    for name, ids in expected.items():
        assert found[name].tolist() == ids[:share].tolist()
        assert found[name].dtype == np.int64


def test_room_is_a_fraction_of_the_samples_or_a_number() -> None:
    tenth = MemoryOptions(fraction=0.1, exemplars=0)
    assert [tenth.budget(samples) for samples in (0, 4, 10, 19, 30, 1000)] == [1, 1, 1, 1, 3, 100]
    assert MemoryOptions(fraction=0.29, exemplars=0).budget(100) == 29
    assert MemoryOptions(fraction=1.0, exemplars=0).budget(77) == 77
    assert MemoryOptions(fraction=0.1, exemplars=2000).budget(77) == 2000


@given(fraction=st.floats(0.01, 1.0), samples=st.integers(1, 100_000))
def test_no_more_than_the_fraction_is_kept(fraction: float, samples: int) -> None:
    budget = MemoryOptions(fraction, 0).budget(samples)
    assert 1 <= budget <= samples
    assert budget == 1 or budget <= fraction * samples + 1e-6 < budget + 1 + 1e-5


def paper_shares(room: MemoryOptions) -> list[float]:
    """What clients of the paper's preset keep of all they have had, after the last task."""
    config = load_config(Selection(experiment="cifar100", method="icarl"))
    tasks = split_tasks(config)
    labels = np.repeat(np.arange(100), 500)
    kept: list[dict[str, NDArray[np.int64]]] = [{} for _ in range(30)]
    had = [0] * 30
    for task in range(10):
        for client, rows in enumerate(partition_task(config, tasks, labels, task, "train")):
            had[client] += len(rows)
            memory = ExemplarMemory(room.budget(had[client]), "random")
            images = np.zeros((len(rows), 1, 1, 3), np.uint8)
            present = Samples(images, labels[rows], rows)
            kept[client] = memory.updated(kept[client], present, None, np.random.default_rng(task))
    pairs = zip(kept, had, strict=True)
    return [ExemplarMemory(1).share_of(found, total) for found, total in pairs]


def test_in_the_papers_preset_a_client_keeps_less_than_a_tenth() -> None:
    room = load_config(Selection(experiment="cifar100", method="icarl")).method.options.memory
    assert all(0.05 < share <= 0.1 for share in paper_shares(room))
    # What it kept when the room was that of a single learner.
    assert np.mean(paper_shares(MemoryOptions(0.1, 2000))) > 0.95


def test_memory_shrinks_as_classes_arrive() -> None:
    memory = ExemplarMemory(6)
    first = memory.updated({}, samples([3] * 10), unit_features(10), None)
    second = memory.updated(first, samples([1] * 4 + [0], 200), unit_features(5), None)
    assert len(first["exemplars.3"]) == 6
    assert [len(ids) for ids in second.values()] == [2, 1, 2]
    assert second["exemplars.3"].tolist() == first["exemplars.3"][:2].tolist()
    assert learnt_classes(second) == (0, 1, 3)
    assert memory.ids(second, 0).tolist() == [204]
    assert memory.ids(second, 9).tolist() == []
    assert memory.ids(second, 9).dtype == np.int64


def test_a_random_choice_follows_the_generator() -> None:
    memory = ExemplarMemory(8, "random")
    present = samples([0, 1] * 20)
    first, again, other = (
        as_lists(memory.updated({}, present, None, np.random.default_rng(seed))) for seed in (1, 1, 2)
    )
    assert first == again != other
    for label in (0, 1):
        chosen = first[f"exemplars.{label}"]
        assert len(set(chosen)) == 4
        assert set(chosen) <= set(present.ids[present.labels == label].tolist())
    assert as_lists(memory.updated({}, present, unit_features(40), np.random.default_rng(1))) == first
    assert as_lists(ExemplarMemory(8).updated({}, present, unit_features(40), None)) != first


@pytest.mark.parametrize(("choice", "message"), [("herding", "unit features"), ("random", "give rng")])
def test_what_a_choice_needs_must_be_given(choice: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExemplarMemory(4, choice).updated({}, samples([0]), None, None)  # type: ignore[arg-type]


def test_other_arrays_of_a_client_are_no_exemplars() -> None:
    memory = ExemplarMemory(4)
    kept = {
        "exemplars.2": np.array([102, 100]),
        "teacher.weight": np.array([101]),
        "exemplars.mean": np.array([103]),
        "exemplars.": np.array([103]),
        "2": np.array([103]),
    }
    train = samples([2, 2, 2, 2])
    assert learnt_classes(kept) == (2,)
    assert memory.rehearsed(kept, train, ()).ids.tolist() == [100, 102]
    assert memory.share_of(kept, 8) == 0.25
    found = memory.updated(kept, samples([7, 7, 7], 300), unit_features(3), None)
    assert {name: len(ids) for name, ids in found.items()} == {"exemplars.2": 2, "exemplars.7": 2}
    for part in memory.held_out(kept, 0.5):
        assert list(part) == ["exemplars.2"]


def test_rehearsed_are_the_old_classes_in_the_order_of_the_data() -> None:
    memory = ExemplarMemory(9)
    train = samples([4, 1, 4, 1, 2, 1])
    kept = {
        "exemplars.1": np.array([105, 101]),
        "exemplars.4": np.array([102]),
        "exemplars.2": np.array([104]),
    }
    found = memory.rehearsed(kept, train, excluding=(2,))
    assert found.ids.tolist() == [101, 102, 105]
    assert found.labels.tolist() == [1, 4, 1]
    assert len(memory.rehearsed(kept, train, excluding={1, 2, 4})) == 0
    assert len(memory.rehearsed({}, train, excluding=())) == 0


@given(
    sizes=st.dictionaries(st.integers(0, 20), st.integers(0, 40), max_size=6),
    fraction=st.floats(0.01, 0.99),
)
def test_held_out_exemplars_are_the_last_and_not_trained_on(sizes: dict[int, int], fraction: float) -> None:
    memory = ExemplarMemory(100)
    kept = {f"exemplars.{label}": np.arange(size)[::-1] + 50 * label for label, size in sizes.items()}
    training, validation = memory.held_out(kept, fraction)
    for label, size in sizes.items():
        ids = memory.ids(kept, label).tolist()
        trained, held = memory.ids(training, label).tolist(), memory.ids(validation, label).tolist()
        assert trained + held == ids
        if size >= 2:
            assert held
            assert trained
            assert len(held) in (1, round(fraction * size), size - 1)
        else:
            assert not held
    assert all(len(ids) for ids in validation.values())


def test_a_tenth_is_held_out() -> None:
    kept = {"exemplars.0": np.arange(37), "exemplars.1": np.arange(50, 57), "exemplars.2": np.array([9])}
    training, validation = ExemplarMemory(100).held_out(kept, 0.1)
    assert {name: len(ids) for name, ids in training.items()} == {
        "exemplars.0": 33,
        "exemplars.1": 6,
        "exemplars.2": 1,
    }
    assert as_lists(validation) == {"exemplars.0": [33, 34, 35, 36], "exemplars.1": [56]}


def test_the_share_of_nothing_is_nothing() -> None:
    assert ExemplarMemory(4).share_of({}, 0) == 0.0
