"""Batches of new samples, each with its part of old ones."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.methods.rehearsal.batches import MixedBatch, mixed_batches


def made(new: int, old: int, size: int, old_per_batch: int, seed: int = 0) -> list[MixedBatch]:
    return list(mixed_batches(new, old, size, old_per_batch, np.random.default_rng(seed)))


@given(
    new=st.integers(0, 60),
    old=st.integers(0, 40),
    size=st.integers(1, 20),
    old_per_batch=st.integers(0, 15),
    seed=st.integers(0, 1000),
)
def test_an_epoch(new: int, old: int, size: int, old_per_batch: int, seed: int) -> None:
    found = made(new, old, size, old_per_batch, seed)

    assert sorted(row for batch in found for row in batch.new) == list(range(new))
    assert all(len(batch.new) == size for batch in found[:-1])
    assert all(0 < len(batch.new) <= size for batch in found)
    assert all(len(batch.old) == (old_per_batch if old else 0) for batch in found)

    replayed = [int(row) for batch in found for row in batch.old]
    for start in range(0, len(replayed), max(1, old)):
        piece = replayed[start : start + old]
        assert len(set(piece)) == len(piece)
        assert set(piece) <= set(range(old))
    if replayed:
        used = [Counter(replayed)[row] for row in range(old)]
        assert max(used) - min(used) <= 1


def test_the_ratio_of_ss_il() -> None:
    found = made(new=1280, old=50, size=128, old_per_batch=32)
    assert [(len(batch.new), len(batch.old)) for batch in found] == [(128, 32)] * 10


def test_more_old_rows_than_there_are_to_a_batch() -> None:
    (batch,) = made(new=4, old=2, size=8, old_per_batch=5)
    assert sorted(Counter(batch.old.tolist()).values()) == [2, 3]


def test_rows_are_shuffled_by_the_generator() -> None:
    first, again, other = (made(40, 20, 8, 4, seed) for seed in (1, 1, 2))
    for part in ("new", "old"):
        rows = [
            np.concatenate([getattr(batch, part) for batch in found]).tolist() for found in (first, again)
        ]
        assert rows[0] == rows[1]
        assert rows[0] != np.concatenate([getattr(batch, part) for batch in other]).tolist()
        assert rows[0] != sorted(rows[0])


def test_each_cycle_through_the_old_rows_has_its_own_order() -> None:
    replayed = np.concatenate([batch.old for batch in made(new=20, old=10, size=5, old_per_batch=5)])
    assert replayed[:10].tolist() != replayed[10:].tolist()


@pytest.mark.parametrize("old", [0, 3])
def test_rows_are_indices_even_where_there_are_none(old: int) -> None:
    for batch in made(6, old, 4, 2):
        assert batch.new.dtype == np.int64
        assert batch.old.dtype == np.int64


def test_what_is_drawn_does_not_depend_on_what_is_drawn_between_batches() -> None:
    rng = np.random.default_rng(0)
    found = []
    for batch in mixed_batches(20, 6, 4, 3, rng):
        rng.random(5)
        found.append(batch.old.tolist())
    assert found == [batch.old.tolist() for batch in made(20, 6, 4, 3)]
