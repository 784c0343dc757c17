"""Named random streams, all derived from one seed; there is no global state to disturb."""

import hashlib

import numpy as np
import torch


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
