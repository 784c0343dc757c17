"""DyTox: `dytox.py` is the method, `transformer.py` the network and how it is trained, `tuning.py` the
balanced epochs at the end of a task."""

from pip_flower.method.registry import register
from pip_flower.methods.dytox.dytox import DyTox, DyToxOptions

register(
    "dytox",
    title="DyTox: a transformer with a token for each task",
    options=DyToxOptions,
    method=DyTox,
    keeps="exemplar images",
)
