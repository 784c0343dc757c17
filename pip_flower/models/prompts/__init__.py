"""Prompt structures: which prompts exist, which a task trains, and how a sample gets its own.

A structure is one file: its options, tagged by `structure`, and a PromptStructure. `PromptOptions` and
`make_structure` are all that lists them.
"""

from pip_flower.fidelity import Paper
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompts.base import Batch, PromptedFeatures, PromptStructure, State
from pip_flower.models.prompts.coda import CODA, CODAOptions
from pip_flower.models.prompts.dualprompt import DualPrompt, DualPromptOptions
from pip_flower.models.prompts.l2p import L2P, L2POptions
from pip_flower.models.prompts.single import SinglePrompt, SinglePromptOptions

PromptOptions = DualPromptOptions | L2POptions | SinglePromptOptions | CODAOptions

__all__ = [
    "Batch",
    "CODAOptions",
    "DualPromptOptions",
    "L2POptions",
    "PromptOptions",
    "PromptStructure",
    "PromptedFeatures",
    "SinglePromptOptions",
    "State",
    "make_structure",
]


def make_structure(
    options: PromptOptions, backbone: Backbone, fidelity: Paper, tasks: int
) -> PromptStructure:
    """The structure that `options` describe, on this backbone, for a run of so many tasks."""
    if isinstance(options, DualPromptOptions):
        return DualPrompt(options, backbone, fidelity)
    if isinstance(options, SinglePromptOptions):
        return SinglePrompt(options, backbone, fidelity)
    if isinstance(options, CODAOptions):
        return CODA(options, backbone, fidelity)
    return L2P(options, backbone, fidelity, tasks)
