"""Configurations of methods that train a whole network, small enough for seconds."""

from typing import Any

# A network of one stage's width.
TINY = (
    "method.network=resnet10t method.stem=imagenet method.image_size=32 training.epochs=1 schedule.rounds=3"
)


def full(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {TINY} {overrides}"}
