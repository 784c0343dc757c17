"""Figures of the PIP paper (CIFAR-100, ten tasks, ViT-B/16), to be shown beside measured ones."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Accuracy in percent; traffic in KB per client and round where the paper gives it."""

    average: float
    last: float
    kilobytes: float | None = None


PUBLISHED = {
    "pip-dualprompt": Published(88.0, 84.3, 1350),
    "pip-l2p": Published(83.6, 77.5, 520),
    "fed-dualprompt": Published(74.2, 69.7),
    "fed-l2p": Published(69.9, 65.9),
}


def published_line(methods: Iterable[str]) -> str:
    """One line about those of `methods` that the paper has results of; empty if it has none."""
    told = [
        f"{method} {result.average} / {result.last}"
        + (f", {result.kilobytes:,.0f} KB" if result.kilobytes else "")
        for method, result in PUBLISHED.items()
        if method in set(methods)
    ]
    if not told:
        return ""
    return f"paper, on CIFAR-100 with ViT-B/16 (Avg / last, up): {'; '.join(told)}"
