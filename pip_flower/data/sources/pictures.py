"""Encoded image files to arrays."""

import io

import numpy as np
from PIL import Image as Pillow

from pip_flower.data.sources.listing import Image


def decode(encoded: bytes) -> Image:
    """A JPEG, PNG or other picture as uint8 [H, W, 3], whatever its colour mode."""
    with Pillow.open(io.BytesIO(encoded)) as picture:
        return np.asarray(picture.convert("RGB"))
