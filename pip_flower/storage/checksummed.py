"""Named arrays and plain facts in one file that tells whether it is whole.

The first line is JSON: the SHA-256 of everything else, and the facts. The rest are the arrays in safetensors.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pip_flower.storage.files import write_bytes


class TornFileError(ValueError):
    """A stored file that is cut short or altered."""


@dataclass(frozen=True)
class Checksummed:
    """What a stored file holds."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def write_checksummed(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> int:
    """Write atomically; returns the size in bytes."""
    # Unlike np.ascontiguousarray this leaves an array without dimensions (Adam's step) as it is.
    body = save({name: np.require(value, requirements="C") for name, value in arrays.items()})
    head = json.dumps({"sha256": _digest(facts, body), "facts": facts}, sort_keys=True)
    data = head.encode() + b"\n" + body
    write_bytes(path, data)
    return len(data)


def read_checksummed(path: Path) -> Checksummed:
    """Read back what `write_checksummed` wrote, or say that it is damaged."""
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(first)
        facts, expected = head["facts"], head["sha256"]
    except (ValueError, TypeError, KeyError):
        raise TornFileError(f"{path} is cut short or no checkpoint") from None
    if _digest(facts, body) != expected:
        raise TornFileError(f"{path} is cut short or altered: its checksum differs")
    try:
        return Checksummed(facts, load(body))
    except SafetensorError as error:
        raise TornFileError(f"{path} cannot be read: {error}") from None


def _digest(facts: Any, body: bytes) -> str:
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + b"\n")
    found.update(body)
    return found.hexdigest()


def digest_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Identifies arrays by their names and values."""
    found = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        found.update(f"{name} {value.shape} {value.dtype}\n".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()
