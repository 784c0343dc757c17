"""Images, their split into tasks, their partition over clients, and the views a ViT sees."""

import pip_flower.runtime.torchvision_compat  # noqa: F401  (must run before timm or torchvision is imported)
