"""Fed-DualPrompt and Fed-L2P: the prompt methods with plain averaging and no prototypes."""

from pip_flower.methods.pip.method import PromptedMethod, PromptedOptions
from pip_flower.method.registry import register
from pip_flower.rounds.prompts import PromptStrategy

for name, title in (("fed-dualprompt", "Fed-DualPrompt"), ("fed-l2p", "Fed-L2P")):
    register(name, title=title, options=PromptedOptions, method=PromptedMethod, strategy=PromptStrategy)
