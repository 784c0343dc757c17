"""Images that are arrays already."""

import numpy as np
from numpy.typing import NDArray

from pip_flower.data.sources.listing import Image, Part, part_of
from pip_flower.data.sources.pictures import resized


def array_part(images: NDArray[np.uint8], labels: NDArray[np.int64], name: str, size: int) -> Part:
    """Images [n, H, W, 3], or grey ones [n, H, W] or [n, H, W, 1] that become RGB."""

    def read(row: int) -> Image:
        image = images[row] if images.ndim == 4 else images[row][..., None]
        return resized(np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image, size)

    return part_of(labels, [f"{name} {row}" for row in range(len(labels))], read)
