"""Configurations of methods that train a whole network, small enough for seconds."""

from typing import Any

from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config

# A network of one stage's width.
TINY = (
    "method.network=resnet10t method.stem=imagenet method.image_size=32 training.epochs=1 schedule.rounds=3"
)


def sized(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    """A run of any method that trains a network, be it a transformer, with a small one."""
    options = load_config(Selection(method=method)).method.options
    network = TINY if hasattr(options, "network") else "training.epochs=1 schedule.rounds=3"
    words = f"{small_run['overrides']} {network} {quick(options)} method.image_size=16 {overrides}"
    return small_run | {"method": method, "overrides": words}


def full(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {TINY} {overrides}"}


# What takes minutes, by the option that has the settings of it.
_SLOW = {
    "encoder": "method.image_size=16 method.encoder.patch=8 method.encoder.width=24 method.encoder.heads=3 "
    "method.encoder.depth=1 method.tuning.epochs=1",
    "proxy": "method.proxy.disturbance=2 method.proxy.steps=3 method.proxy.iterations=2 method.proxy.kept=2",
    "synthesis": "method.synthesis.images=8 method.synthesis.batch=4 method.synthesis.steps=2 "
    "method.synthesis.warm_up=1 method.synthesis.student_steps=1",
}


def quick(options: object) -> str:
    """Overrides with which a transformer is small and the server's own work is quickly done, for a method
    with these options."""
    return " ".join(words for name, words in _SLOW.items() if hasattr(options, name))
