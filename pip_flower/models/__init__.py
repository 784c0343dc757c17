"""The frozen backbone, the prompts attached to it, and the classifier."""

import pip_flower.runtime.torchvision_compat  # noqa: F401  (must run before timm or torchvision is imported)
