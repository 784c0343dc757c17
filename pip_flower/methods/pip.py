"""PIP: prompts and head averaged by participation and samples, class prototypes shared and injected."""

from pip_flower.methods.pip.method import PromptedMethod, PromptedOptions
from pip_flower.method.registry import register
from pip_flower.rounds.prompts import PromptStrategy

for name, title in (("pip-dualprompt", "PIP-DualPrompt"), ("pip-l2p", "PIP-L2P")):
    register(name, title=title, options=PromptedOptions, method=PromptedMethod, strategy=PromptStrategy)
