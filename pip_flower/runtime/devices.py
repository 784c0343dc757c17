"""Device and precision: chosen here and nowhere else."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import RuntimeConfig

F = TypeVar("F", bound=Callable[..., Any])
Module = TypeVar("Module", bound=torch.nn.Module)


def pick_device(config: RuntimeConfig) -> torch.device:
    """The configured device; `auto` takes a GPU when there is one."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise ConfigError(
            "runtime.device", f"{config.device!r} is not a device", "Give auto, cpu or cuda"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.device", "'cuda' is not available to this torch", "Give auto or cpu")
    return device


def prepare_process(config: RuntimeConfig) -> torch.device:
    """Fix what results depend on in this process; returns the device to compute on."""
    # Another number of threads sums in another order, so it is configured, never left to the machine.
    torch.set_num_threads(config.threads)
    torch.backends.cudnn.benchmark = False
    return pick_device(config)


def uses_bfloat16(config: RuntimeConfig, device: torch.device) -> bool:
    """Whether the frozen ViT computes in bfloat16; `auto` means on CUDA only."""
    return config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")


def autocast(config: RuntimeConfig, device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 arithmetic where configured, with float32 where it matters (norms, softmax)."""
    if uses_bfloat16(config, device):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def frozen(module: Module, config: RuntimeConfig, device: torch.device) -> Module:
    """`module` without gradients, on the device, in the precision it computes in: weights that never
    change are cast once, not in every pass."""
    module.requires_grad_(False).eval().to(device)
    if uses_bfloat16(config, device):
        module.to(torch.bfloat16)
    if device.type == "cuda":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def patch_layout(images: Tensor) -> Tensor:
    """Images [B, 3, S, S] in the memory layout that the patch convolution is fastest in."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def images_at_once(tokens: int, device: torch.device) -> int:
    """How many images of `tokens` tokens the ViT takes in one go. On a CPU, activations that do not fit
    its caches cost more than smaller matrix products do; fixed, because the order of sums depends on it."""
    return max(1, 4096 // tokens) if device.type == "cpu" else 1 << 30


def canonical_batch(device: torch.device) -> int:
    """Number of images (the last batch is filled up) that cached queries are computed in. A result may
    depend on the shape of the product it came from, so that shape must not depend on who else asks."""
    return 1 if device.type == "cpu" else 64


def numerics(config: RuntimeConfig, device: torch.device) -> str:
    """What the last bits of a forward pass depend on, beside weights and images."""
    machine = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else _gpu_name(device)
    precision = "bfloat16" if uses_bfloat16(config, device) else "float32"
    return f"torch {torch.__version__}, {machine}, {precision}, {config.threads} threads"


def compiled(function: F, config: RuntimeConfig) -> F:
    """`function` through torch.compile where configured."""
    return cast(F, torch.compile(function, dynamic=True)) if config.compile else function


def adam(parameters: Iterable[Tensor], learning_rate: float, device: torch.device) -> torch.optim.Adam:
    """Adam (0.9, 0.999, 1e-8) without weight decay; one kernel per step on CUDA."""
    return torch.optim.Adam(parameters, lr=learning_rate, fused=device.type == "cuda")


def _gpu_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device))
