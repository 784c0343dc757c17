"""Pickles that hold arrays, read without running what else a pickle may ask for."""

import io
import pickle
from typing import Any

from pip_flower.config.schema import ConfigError
from pip_flower.data.sources.trees import Tree

_REBUILD_ARRAYS = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def unpickled(tree: Tree, name: str, *keys: str) -> dict[str, Any]:
    """The mapping pickled in a file, which must have `keys`; strings of Python 2 become text."""
    try:
        found = _ArraysOnly(io.BytesIO(tree.read(name)), encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ConfigError(
            "dataset.data_dir", f"the pickle {name!r} cannot be read: {error}", "Download or copy it again"
        ) from None
    missing = [key for key in keys if not isinstance(found, dict) or key not in found]
    if missing:
        raise ConfigError(
            "dataset.data_dir",
            f"the pickle {name!r} has no {', '.join(map(repr, missing))}",
            "Give the original file",
        )
    return dict(found)


class _ArraysOnly(pickle.Unpickler):
    """A pickle may name any function to call; these need only what rebuilds arrays."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) in _REBUILD_ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
