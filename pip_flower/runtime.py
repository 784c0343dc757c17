"""Device, precision, per-process caches and named random streams."""

import hashlib
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import numpy as np
import torch

from pip_flower.config import RuntimeConfig
from pip_flower.schema import ConfigError

T = TypeVar("T")
_cache: dict[Hashable, Any] = {}


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names`; streams with different names are independent."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The NumPy generator of a named stream."""
    return np.random.default_rng(stream_seed(seed, *names))


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """The torch generator of a named stream; on the CPU, so that every device draws the same."""
    return torch.Generator().manual_seed(stream_seed(seed, *names))


def once_per_process(key: Hashable, make: Callable[[], T]) -> T:
    """`make()` the first time this process asks for `key`, the same object afterwards."""
    if key not in _cache:
        _cache[key] = make()
    return cast(T, _cache[key])


def pick_device(config: RuntimeConfig) -> torch.device:
    """The configured device; `auto` takes a GPU when there is one."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise ConfigError(
            "runtime.device", f"{config.device!r} is not a device", "Give auto, cpu or cuda"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device", "'cuda' is not available to this torch", "Give auto or cpu"
        )
    return device


def prepare_process(config: RuntimeConfig) -> torch.device:
    """Fix what results depend on in this process; returns the device to compute on."""
    # Another number of threads sums in another order, so it is configured, never left to the machine.
    torch.set_num_threads(config.threads)
    torch.backends.cudnn.benchmark = False
    return pick_device(config)


def autocast(config: RuntimeConfig, device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 arithmetic where configured; `auto` means on CUDA only."""
    automatic = config.precision == "auto" and device.type == "cuda"
    if automatic or config.precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
