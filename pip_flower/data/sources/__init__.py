"""Where images come from: one file per source, and the registry."""

from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.sources.registry import load_data

__all__ = ["ImageData", "Samples", "load_data"]
