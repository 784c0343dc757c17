"""Mutated replies and configurations: no crash, no hang, no nonsense accepted.

FUZZ_REPLIES=10000 FUZZ_CONFIGURATIONS=2000 pytest tests/rounds/test_fuzz.py -s
"""

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.fuzz_configurations import judge_configuration, overrides
from support.fuzz_replies import METHODS, honest_reply, judge_reply, replies

REPLIES = int(os.environ.get("FUZZ_REPLIES", "800"))
CONFIGURATIONS = int(os.environ.get("FUZZ_CONFIGURATIONS", "150"))


def throw(mutants: st.SearchStrategy[Any], judge: Any, examples: int) -> None:
    quick = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )

    @quick
    @given(mutants)
    def judged(mutant: Any) -> None:
        judge(mutant)

    judged()


@pytest.mark.parametrize("method", METHODS)
def test_mutated_replies_are_rejected_or_harmless(method: str) -> None:
    honest = honest_reply(method)
    counts: Counter[str] = Counter()
    throw(replies(honest), lambda records: judge_reply(honest, records, counts), REPLIES // len(METHODS))
    print(f"{method}: {dict(counts)}")
    assert counts["rejected"] > counts["accepted"] > 0
    assert not counts["rejected without a reason"]


def test_mutated_configurations_are_refused_or_sensible() -> None:
    counts: Counter[str] = Counter()
    throw(overrides(), lambda text: judge_configuration(text, counts), CONFIGURATIONS)
    print(f"configurations: {dict(counts)}")
    assert counts["refused"] > counts["accepted"] > 0
    assert not counts["refused without a key"]
