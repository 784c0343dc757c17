"""PIP and what is built on it: prompts, a head and class prototypes, trained and shared.

`pip.py` is the method, `training.py` a client's step, `sharing.py` the exchange of prototypes, `align.py` the
variant whose head is refitted after each task. PIP's baselines and ablations are YAML files.
"""

from pip_flower.method.registry import register
from pip_flower.methods.pip.align import AlignedPIP, AlignedPIPOptions
from pip_flower.methods.pip.pip import PIP, PIPOptions

register("pip", title="PIP: prototype-injected prompts", options=PIPOptions, method=PIP)
register("pip-align", title="PIP with aligned heads", options=AlignedPIPOptions, method=AlignedPIP)
