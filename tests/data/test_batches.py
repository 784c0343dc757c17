"""Pieces of a data set."""

import numpy as np

from pip_flower.data.batches import batches, own_batches


def test_pieces_are_full_except_the_last() -> None:
    assert [piece.tolist() for piece in batches(np.array([5, 3, 1, 4, 2]), 2)] == [[5, 3], [1, 4], [2]]
    assert [len(piece) for piece in batches(np.arange(4), 2)] == [2, 2]
    assert batches(np.arange(0), 2) == []


def test_what_belongs_to_others_falls_out_of_its_piece() -> None:
    found = own_batches(np.array([0, 7, 3, 2, 8, 9, 1, 4]), 2, samples=4)
    assert [piece.tolist() for piece in found] == [[0], [3, 2], [1]]
