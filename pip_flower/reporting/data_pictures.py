"""Pictures of data: a contact sheet of images, and who holds what."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pip_flower.data.samples import ImageData
from pip_flower.storage.files import write_bytes

_TILE, _GAP, _TITLE = 64, 4, 180
_ROWS, _COLUMNS = 20, 10


def contact_sheet(data: ImageData, path: Path) -> None:
    """The first training images of classes spread over the data set, a row per class."""
    classes = np.unique(np.linspace(0, len(data.class_names) - 1, _ROWS).astype(int))
    step = _TILE + _GAP
    sheet = Image.new("RGB", (_TITLE + _COLUMNS * step + _GAP, len(classes) * step + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for row, label in enumerate(classes):
        top = _GAP + row * step
        draw.text(
            (_GAP, top + _TILE // 2 - 8), _shortened(f"{label} {data.class_names[label]}"), "black", font
        )
        members = np.flatnonzero(data.train.labels == label)[:_COLUMNS]
        for column, image in enumerate(data.train.images[members]):
            picture = Image.fromarray(image)
            picture.thumbnail((_TILE, _TILE))
            # Small originals are enlarged by whole pixels, so that one sees what is there.
            scale = max(1, _TILE // max(picture.size))
            picture = picture.resize(
                (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
            )
            sheet.paste(picture, (_TITLE + column * step, top))
    _write(path, lambda file: sheet.save(file, "png"))


def partition_picture(counts: NDArray[np.int64], tasks: list[int], path: Path) -> None:
    """`counts` [clients, classes in order of arrival] as a map; `tasks` are the classes of each task."""
    clients, classes = counts.shape
    figure = Figure(figsize=(min(16, 3 + 0.16 * classes), min(12, 2 + 0.16 * clients)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = np.where(counts > 0, counts.astype(float), np.nan)
    drawn = axes.imshow(shown, aspect="auto", cmap="viridis", interpolation="nearest", vmin=0)
    figure.colorbar(drawn, ax=axes, label="training images")
    ends = np.cumsum(tasks)
    for end in ends[:-1]:
        axes.axvline(end - 0.5, color="black", linewidth=0.8)
    axes.set_xticks(ends - np.array(tasks) / 2 - 0.5, [f"T{task + 1}" for task in range(len(tasks))])
    axes.set_xlabel("classes, in the order of the tasks that bring them")
    axes.set_ylabel("client")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _write(path, lambda file: figure.savefig(file, format="png", dpi=120))


def _shortened(text: str, length: int = 26) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _write(path: Path, save: Callable[[BytesIO], object]) -> None:
    buffer = BytesIO()
    save(buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, buffer.getvalue())
