"""Prompt structures: which prompts exist, which a task trains, and how a sample gets its own."""

from pip_flower.models.backbone import Backbone
from pip_flower.models.prompts.base import Prompted, PromptStructure, State
from pip_flower.models.prompts.dualprompt import DualPrompt, DualPromptOptions
from pip_flower.models.prompts.l2p import L2P, L2POptions

PromptOptions = DualPromptOptions | L2POptions

__all__ = [
    "DualPromptOptions",
    "L2POptions",
    "PromptOptions",
    "PromptStructure",
    "Prompted",
    "State",
    "make_structure",
]


def make_structure(options: PromptOptions, backbone: Backbone) -> PromptStructure:
    """The structure that `options` describe, on this backbone."""
    if isinstance(options, DualPromptOptions):
        return DualPrompt(options, backbone)
    return L2P(options, backbone)
