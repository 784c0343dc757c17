"""Encoded image files to arrays."""

import io

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps

from pip_flower.data.sources.listing import Image, Part, part_of
from pip_flower.data.sources.trees import Tree

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def is_picture(name: str) -> bool:
    """Whether a file looks like an image by its name."""
    return name.lower().endswith(ENDINGS)


def decode(encoded: bytes, size: int) -> Image:
    """A picture as uint8 [H, W, 3], upright, whatever its colour mode; cut to a square of side `size`
    unless that is 0."""
    with Pillow.open(io.BytesIO(encoded)) as picture:
        upright = ImageOps.exif_transpose(picture)
        colour = _rgb(upright)
    return np.asarray(_square(colour, size) if size else colour)


def picture_part(tree: Tree, files: list[list[str]], size: int) -> Part:
    """Image files by class: `files[label]` are the names."""
    names = [name for members in files for name in members]
    labels = np.repeat(np.arange(len(files)), [len(members) for members in files]).astype(np.int64)
    return part_of(labels, names, lambda row: decode(tree.read(names[row]), size))


def resized(image: Image, size: int) -> Image:
    """An array cut to a square of side `size`, unless that is 0 or it is one already."""
    if not size or image.shape[:2] == (size, size):
        return image
    return np.asarray(_square(Pillow.fromarray(image), size))


def _rgb(picture: Pillow.Image) -> Pillow.Image:
    if picture.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8 instead of scaling them.
        return Pillow.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"its pixels are of mode {picture.mode!r}, not 8 or 16 bits")
    if "transparency" in picture.info or picture.mode in ("RGBA", "LA", "PA"):
        # What is transparent has a colour too, often black; people see the paper behind it.
        see_through = picture.convert("RGBA")
        paper = Pillow.new("RGBA", picture.size, "white")
        return Pillow.alpha_composite(paper, see_through).convert("RGB")
    return picture.convert("RGB")


def _square(picture: Pillow.Image, size: int) -> Pillow.Image:
    """The shorter side resized to `size` (bicubic), then the centre cut out."""
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    larger = picture.resize((width, height), Pillow.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return larger.crop((left, top, left + size, top + size))
