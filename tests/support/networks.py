"""Configurations of methods that train a whole network, small enough for seconds."""

from typing import Any

# A network of one stage's width.
TINY = (
    "method.network=resnet10t method.stem=imagenet method.image_size=32 training.epochs=1 schedule.rounds=3"
)


def full(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {TINY} {overrides}"}


# What the server of a method does in minutes, by the option that has the settings of it.
_SLOW = {
    "proxy": "method.proxy.disturbance=2 method.proxy.steps=3 method.proxy.iterations=2 method.proxy.kept=2",
    "synthesis": "method.synthesis.images=8 method.synthesis.batch=4 method.synthesis.steps=2 "
    "method.synthesis.warm_up=1 method.synthesis.student_steps=1",
}


def quick(options: object) -> str:
    """Overrides with which the server's own work takes no time, for a method with these options."""
    return " ".join(words for name, words in _SLOW.items() if hasattr(options, name))
