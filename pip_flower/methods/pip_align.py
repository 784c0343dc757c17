"""PIP-Align: PIP whose head the server refits on the Gaussians of all classes seen, after each task."""

from pip_flower.methods.pip.aligned import AlignedMethod, AlignedOptions
from pip_flower.method.registry import register
from pip_flower.rounds.align import AlignStrategy

register(
    "pip-align",
    title="PIP with aligned heads",
    options=AlignedOptions,
    method=AlignedMethod,
    strategy=AlignStrategy,
)
