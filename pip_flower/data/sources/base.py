"""What every source tells about itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.listing import Listing


@dataclass(frozen=True)
class Archive:
    """A file that its authors let anybody download."""

    url: str
    name: str
    md5: str


@dataclass(frozen=True)
class Source:
    """A kind of data set: `listed` finds what is there without decoding it, `wanted` says what
    dataset.data_dir must be, `archive` where it can be had. Where a listing holds all images in memory,
    `named` gives the names of the classes without them, or None where they cannot be had."""

    name: str
    wanted: str
    listed: Callable[[DatasetConfig], Listing]
    archive: Archive | None = None
    needs_files: bool = True
    named: Callable[[DatasetConfig], Sequence[str] | None] | None = None
