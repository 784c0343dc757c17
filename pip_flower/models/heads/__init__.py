"""Heads: from features to a logit for each class, stored as one block of arrays for each task.

A head holds no arrays itself; they are in a state, under names that carry the task. Masking the logits of all
other tasks to -inf is the same as reading only the block of one task, so a task that trains its own block
cannot touch another.
"""

from pip_flower.models.heads.attention import TaskAttentionHead
from pip_flower.models.heads.base import Head, State
from pip_flower.models.heads.bias import BiasCorrection
from pip_flower.models.heads.cosine import CosineHead
from pip_flower.models.heads.linear import LinearHead
from pip_flower.models.heads.proxies import ProxyHead

__all__ = ["BiasCorrection", "CosineHead", "Head", "LinearHead", "ProxyHead", "State", "TaskAttentionHead"]
