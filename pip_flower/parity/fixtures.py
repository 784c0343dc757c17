"""Fixture files: arrays by name, with an error that says which file lacks which array."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.config.schema import ConfigError

Array = NDArray[Any]


class Fixture:
    """The arrays of one .npz file."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        path = directory / name
        if not path.is_file():
            raise ConfigError("parity", f"there is no file {str(path)!r}", "Give a directory of fixtures")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                self._arrays = {key: np.array(stored[key]) for key in stored.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError("parity", f"{str(path)!r} cannot be read: {error}", "Get it again") from None

    def __getitem__(self, key: str) -> Array:
        if key not in self._arrays:
            known = ", ".join(sorted(self._arrays)[:8])
            raise ConfigError("parity", f"{self.name} has no array {key!r}", f"It has {known}, ...")
        return self._arrays[key]

    def tensor(self, key: str) -> Tensor:
        """The array as a tensor."""
        return torch.from_numpy(self[key])

    def number(self, key: str) -> float:
        """A scalar."""
        return float(self[key])

    def under(self, prefix: str) -> dict[str, Array]:
        """The arrays whose names start with `prefix`, by the rest of their names."""
        found = {k.removeprefix(prefix): v for k, v in self._arrays.items() if k.startswith(prefix)}
        if not found:
            raise ConfigError("parity", f"{self.name} has no array {prefix}*", "Get the file again")
        return found

    def has(self, key: str) -> bool:
        """Whether the file has the array."""
        return key in self._arrays

    def groups(self, pattern: str) -> list[str]:
        """First parts of names, in the order of the file, where `<part>.<rest>` matches `pattern`."""
        found = [match[1] for key in self._arrays if (match := re.fullmatch(pattern, key))]
        if not found:
            raise ConfigError("parity", f"{self.name} has no array like {pattern}", "Get the file again")
        return list(dict.fromkeys(found))
