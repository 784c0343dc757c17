"""Named arrays: how a model is held, sent and saved."""

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

# What is read, and what is made.
Arrays = Mapping[str, NDArray[Any]]
NamedArrays = dict[str, NDArray[Any]]


def pick(arrays: Arrays, names: Iterable[str]) -> NamedArrays:
    """The named arrays, in the order of `names`."""
    return {name: arrays[name] for name in names}
