"""What a method is: its options, its client side and its server side; `methods/` has those that there are.

An author of a method, in this tree or in a package of their own, needs only what is named here and, for the
parts that methods share, `pip_flower.methods`, `pip_flower.models` and `pip_flower.data`.
"""

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.base import Method
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution, Exchange
from pip_flower.method.merging import Kept, Mean, Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import ArraySpec, RejectedError
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace

__all__ = [
    "ArraySpec",
    "Arrays",
    "ClientJob",
    "ClientUpdate",
    "Config",
    "ConfigError",
    "Contribution",
    "Exchange",
    "Kept",
    "Mean",
    "Merge",
    "Method",
    "NamedArrays",
    "RejectedError",
    "Round",
    "Sum",
    "Workspace",
    "pick",
    "register",
]
