"""What is set for all of PyTorch and decides about bits: fixed when it is imported, told as environment, kept as state.

Of 66 computations on a CPU with two threads, 6 do not repeat as PyTorch is (`index_put_`, `index_copy_`, the backward
of indexing and `take`), and all do with deterministic algorithms; 22 depend on the number of threads. Measured with
PyTorch 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch

from detrain.base import messages

_MATMUL: Any = torch.backends.cuda.matmul
_CUDNN: Any = torch.backends.cudnn
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _set_autocast(states: list[tuple[str, bool, str]]) -> None:
    for kind, is_on, dtype in states:
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, getattr(torch, dtype))


FLAGS: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "default dtype": (
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda value: torch.set_default_dtype(getattr(torch, value)),
    ),
    "gradients": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn": (lambda: _CUDNN.enabled, lambda value: setattr(_CUDNN, "enabled", value)),
    "reduced precision fp16": (
        lambda: bool(_MATMUL.allow_fp16_reduced_precision_reduction),
        lambda value: setattr(_MATMUL, "allow_fp16_reduced_precision_reduction", value),
    ),
    "reduced precision bf16": (
        lambda: bool(_MATMUL.allow_bf16_reduced_precision_reduction),
        lambda value: setattr(_MATMUL, "allow_bf16_reduced_precision_reduction", value),
    ),
    "mkldnn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "deterministic": (
        torch._C._get_deterministic_algorithms,
        lambda value: torch.use_deterministic_algorithms(value, warn_only=True),
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "autocast": (
        lambda: [[kind, torch.is_autocast_enabled(kind), _name(torch.get_autocast_dtype(kind))] for kind in ("cpu", "cuda")],
        _set_autocast,
    ),
}
"""What a program may set for all of PyTorch, and its loop may change."""


def fix(seed: int, threads: int) -> None:
    """Fix the seed, the number of threads, and deterministic algorithms; where CUDA has none, it warns.

    PyTorch has the number of threads that the user asks for by a variable already.
    """
    torch.manual_seed(seed)
    if not any(os.environ.get(name) for name in _THREADS):
        torch.set_num_threads(threads)
    refix()


def refix() -> None:
    """Set again what a program may have set otherwise, though it decides about bits."""
    if not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling what is to be overwritten anyway takes time, and makes nothing that is defined repeat.
    torch.utils.deterministic.fill_uninitialized_memory = False
    if _CUDNN.benchmark and torch.cuda.is_available():
        messages.say("torch.backends.cudnn.benchmark is switched off: it chooses kernels by time, so bits by chance")
    _CUDNN.benchmark = False
    _CUDNN.deterministic = True


def environment() -> dict[str, str]:
    """Return the processor's capability as PyTorch sees it, and the devices."""
    found = {"torch cpu": torch.backends.cpu.get_cpu_capability()}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        found["torch devices"] = ", ".join(names)
        found["torch cuda"] = f"{torch.version.cuda} cudnn {_CUDNN.version()}"
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
