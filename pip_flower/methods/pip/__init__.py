"""PIP and what is built on it: prompts, a head and class prototypes, trained and shared.

`pip.py` is the method, `training.py` a client's step, `sharing.py` the exchange of prototypes, `align.py` the
variant whose head is refitted after each task. `drift.py` is the method whose Gaussians move along with the
prompts; `discriminant.py` and `local_head.py` are its mathematics, `task_moments.py` is the end of a task,
`moments_wire.py` its messages. `oracle.py` is PIP that is told the task, `cprompt.py` is Fed-CPrompt and
`hgp.py` is HGP. PIP's baselines and ablations are YAML files.
"""

from pip_flower.method.registry import register
from pip_flower.methods.pip.align import AlignedPIP, AlignedPIPOptions
from pip_flower.methods.pip.cprompt import FedCPrompt, FedCPromptOptions
from pip_flower.methods.pip.drift import DriftingPIP, DriftingPIPOptions
from pip_flower.methods.pip.hgp import HGP, HGPOptions
from pip_flower.methods.pip.oracle import OracleOptions, OraclePIP
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
register(
    "pip-oracle",
    title="PIP that is told the task",
    options=OracleOptions,
    method=OraclePIP,
    sends=_PROTOTYPES,
)
register(
    "fed-cprompt",
    title="Fed-CPrompt: contrastive prompts",
    options=FedCPromptOptions,
    method=FedCPrompt,
    sends=_PROTOTYPES,
)
register(
    "hgp",
    title="HGP: hierarchical generative prototypes",
    options=HGPOptions,
    method=HGP,
    sends="class feature means and variances",
)
