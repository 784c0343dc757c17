"""Make torchvision importable beside a torch build it was not compiled for.

The torchvision wheel on the package index is compiled against CUDA torch. Beside a CPU-only torch its
compiled library does not load, so the operators it would have declared are missing and
``import torchvision`` stops at the first one. timm imports torchvision, hence nothing would work.
Declaring the two operator schemas is enough: transforms, datasets and models are plain Python. With a
matching pair of wheels the first import succeeds and this module does nothing.

Import this module before torchvision or timm.
"""

import importlib
import sys

import torch

_MISSING_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# torch drops the declarations when the library object is collected.
_library: torch.library.Library | None = None


def ensure_importable() -> bool:
    """Import torchvision, declaring missing operators if needed; True if it had to intervene."""
    global _library
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    else:
        return False
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _MISSING_OPERATORS:
        _library.define(schema)
    importlib.import_module("torchvision")
    return True


ensure_importable()
