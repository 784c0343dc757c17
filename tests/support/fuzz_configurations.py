"""Mutated configurations, and what must be true of those that are accepted."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.configuration import load_config

_SECONDS_EACH = 20
_BASE = load_config(Selection()).as_mapping()


def _keys(values: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found += _keys(value, f"{path}{name}.") if isinstance(value, dict) else [f"{path}{name}"]
    return found


_KNOWN_KEYS = [key for key in _keys(_BASE) if key not in ("experiment", "method.label")]
_VALUES = st.one_of(
    st.integers(-(10**20), 10**20),
    st.integers(-3, 40),
    st.floats(allow_nan=True, allow_infinity=True),
    st.booleans(),
    st.sampled_from(
        ["", "mean", "median", "paper", "released", "null", "[1, 2]", "[0.1, x]", "{a: 1}", "1e-3", "~"]
    ),
    st.text(max_size=12),
)
_TYPOS = st.sampled_from(
    ["", ".", "seed.x", "trainig.epochs", "method", "method.", "federation", "a.b.c.d", "="]
)


def _default(key: str) -> Any:
    """What the key is anyway, or 1 where there is no such key."""
    value: Any = _BASE
    for name in key.split("."):
        value = value.get(name, 1) if isinstance(value, dict) else 1
    return 1 if isinstance(value, list | dict) else value


@st.composite
def overrides(draw: st.DrawFn) -> str:
    """Text as somebody in a hurry might type it."""
    words = []
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(_KNOWN_KEYS)) if draw(st.integers(0, 9)) else draw(_TYPOS)
        value = draw(_VALUES) if draw(st.booleans()) else _default(key)
        words.append(f"{key}={value}")
    if draw(st.integers(0, 9)) == 0:
        words.append(draw(st.text(max_size=15)))
    return " ".join(words)


def judge_configuration(text: str, counts: Counter[str]) -> None:
    """Refused with an error that names a key, or a configuration whose numbers make sense."""
    began = time.process_time()
    try:
        config = load_config(Selection(overrides=text))
    except ConfigError as error:
        counts["refused" if error.key else "refused without a key"] += 1
    else:
        counts["accepted"] += 1
        _require_sensible(config)
    assert time.process_time() - began < _SECONDS_EACH, "it took too long"


def _require_sensible(config: Config) -> None:
    federation, schedule, rule = config.federation, config.schedule, config.aggregation
    assert 1 <= federation.min_clients <= federation.clients_per_round <= federation.clients
    assert federation.round_timeout > 0
    assert federation.round_retries >= 0
    assert schedule.rounds >= schedule.tasks >= 1
    assert schedule.rounds % schedule.tasks == 0
    assert schedule.base_classes or config.dataset.classes % schedule.tasks == 0
    assert config.training.epochs >= 1
    assert config.training.batch_size >= 1
    assert config.training.learning_rate > 0
    assert 0 <= rule.trim < 0.5
    assert rule.clip_norm >= 0
    assert config.validation.max_samples >= 1
    assert 0 < config.partition.class_fraction <= 1
    numbers = [value for value in _numbers(config.as_mapping()) if isinstance(value, float)]
    assert np.isfinite(numbers).all()
    assert len(config.digest()) == 64


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in _numbers(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in _numbers(inner)]
    return [value]
