"""The two implementations that the benchmark times do the same work."""

import numpy as np

from benchmarks.client_round import FastRound, PlainRound
from support.toy import toy_backbone


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
