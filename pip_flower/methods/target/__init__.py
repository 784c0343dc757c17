"""TARGET: `target.py` is the method, `synthesis.py` how the server makes images from the model alone, with
the network of `generator.py`."""

from pip_flower.method.registry import register
from pip_flower.methods.target.target import TARGET, TARGETOptions

register(
    "target",
    title="TARGET: distillation on synthetic images",
    options=TARGETOptions,
    method=TARGET,
)
