"""Benchmarks can be started; the two implementations that one of them times do the same work."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.client_round import FastRound, PlainRound
from support.toy import toy_backbone

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def test_fast_and_plain_round_give_the_same_losses_and_prototypes() -> None:
    found = []
    for kind in (FastRound, PlainRound):
        work = kind(toy_backbone(), samples=12, batch_size=5)
        trainer = work.start()
        losses = [work.train(trainer)]
        table = work.prototypes(trainer)
        found.append((losses, table.mean, table.variance))
    for fast, plain in zip(*found, strict=True):
        assert np.allclose(fast, plain, atol=1e-5)


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
