"""PIP and what is built on it: prompts, a head and class prototypes, trained and shared.

`pip.py` is the method, `training.py` a client's step, `sharing.py` the exchange of prototypes, `align.py` the
variant whose head is refitted after each task. `drift.py` is the method whose Gaussians move along with the
prompts; `moments.py` and `discriminant.py` are its mathematics, `moments_wire.py` its messages. PIP's
baselines and ablations are YAML files.
"""

from pip_flower.method.registry import register
from pip_flower.methods.pip.align import AlignedPIP, AlignedPIPOptions
from pip_flower.methods.pip.drift import DriftingPIP, DriftingPIPOptions
from pip_flower.methods.pip.pip import PIP, PIPOptions

_PROTOTYPES = "class feature means and variances, where prototypes are shared"

register("pip", title="PIP: prototype-injected prompts", options=PIPOptions, method=PIP, sends=_PROTOTYPES)
register(
    "pip-drift",
    title="PIP with drifting Gaussians",
    options=DriftingPIPOptions,
    method=DriftingPIP,
    sends=f"{_PROTOTYPES}; class feature sums, scatter and drift at the end of a task",
)
register(
    "pip-align",
    title="PIP with aligned heads",
    options=AlignedPIPOptions,
    method=AlignedPIP,
    sends="class feature means and variances",
)
