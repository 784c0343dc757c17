"""rho: how often a client has taken part in the task, and that it reaches the average."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.method.exchange import Contribution
from pip_flower.method.round import Round
from pip_flower.methods.pip.pip import PIP
from support.runs import play

Merged = list[tuple[Round, Sequence[Contribution], NamedArrays]]


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> Merged:
    """Everything that a run of PIP merges, round by round."""
    seen: Merged = []
    plain = PIP.merge

    def merge(self: PIP, round_: Round, given: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        found = plain(self, round_, given, arrays)
        seen.append((round_, given, found))
        return found

    monkeypatch.setattr(PIP, "merge", merge)
    return seen


def test_rho_counts_the_rounds_of_the_task_and_weighs_the_average(
    small_run: dict[str, Any], merged: Merged
) -> None:
    overrides = f"{small_run['overrides']} schedule.rounds=12 training.epochs=1"
    play(small_run | {"method": "pip-dualprompt", "overrides": overrides})
    assert [round_.number for round_, _, _ in merged] == list(range(1, 13))
    counts: Counter[int] = Counter()
    uneven = 0
    for round_, given, found in merged:
        if round_.starts_task:
            counts.clear()
        counts.update(contribution.partition for contribution in given)
        assert {c.partition: c.participations for c in given} == {
            c.partition: counts[c.partition] for c in given
        }
        rho, n = (
            np.array(values)
            for values in zip(*((c.participations, c.update.samples) for c in given), strict=True)
        )
        name = f"head.{round_.task}.weight"
        heads = np.stack([c.update.arrays[name] for c in given]).astype(np.float64)
        wanted = np.average(heads, axis=0, weights=rho * n)
        assert np.allclose(found[name], wanted, atol=1e-6)
        uneven += not np.allclose(found[name], np.average(heads, axis=0, weights=n), atol=1e-5)
    # In some rounds the clients have not taken part equally often, and then it shows.
    assert uneven
