"""PyTorch's global settings that decide about bits: fixed at its import, reported as environment, kept as state. Also
other state that it keeps for the whole process, where no name leads: the count of hooks, which numbers them; the hooks
of every module and optimizer; cached weights in other forms.

Of 66 computations on a CPU with two threads, 6 do not repeat with PyTorch's defaults (`index_put_`, `index_copy_`, the
backward of indexing and `take`), and all repeat with deterministic algorithms; 22 depend on the number of threads.
Measured with PyTorch 2.13.

A function of TorchScript (`torch.jit.script`, `trace`) is differentiated op by op in its first call, and from then on,
profiled, by formulas of TorchScript's own: other bits for 4 of 6 common activations. How often it was called is nowhere
to be read, so it is not profiled: each call has the bits of the first one.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch.streams import ACCELERATORS
from detrain.base import messages

_CUDA: Any = torch.backends.cuda
_CUDNN: Any = torch.backends.cudnn
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_PRECISIONS: Final = (
    *("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"),
    *("mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
)
"""Paths below `torch.backends` that have a float32 precision, a whole before its parts, as setting it sets these."""

_COMPILER: Final = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")
_KINDS: Final = ("cpu", *sorted(ACCELERATORS))
_SCALARS: Final = (bool, int, float, str, type(None))

Flag = tuple[Callable[[], Any], Callable[[Any], object]]

_GLOBAL: Final[dict[str, Any]] = {
    **{f"module {name}": vars(modules)[name] for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks")},
    **{f"optimizer {name}": vars(optimizers)[name] for name in vars(optimizers) if name.startswith("_global_optimizer_")},
}


def _set_autocast(states: list[tuple[str, bool, str]]) -> None:
    for kind, is_on, dtype in states:
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, getattr(torch, dtype))


def _matmul_precision() -> str | None:
    """Return the precision for all backends; None once a program has set it for one: PyTorch then has no common one."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _precision_owners() -> list[Any]:
    found = [functools.reduce(getattr, filter(None, path.split(".")), torch.backends) for path in _PRECISIONS]
    return [each for each in found if hasattr(each, "fp32_precision")]


def _set_precisions(values: list[str]) -> None:
    for owner, value in zip(_precision_owners(), values, strict=True):
        if owner.fp32_precision != value:
            owner.fp32_precision = value


def _attributes(owner: Any, *names: str) -> Flag:
    """Return the getter and setter of a setting that consists of attributes of an object."""

    def set_to(values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            if getattr(owner, name) != value:
                setattr(owner, name, value)

    return lambda: [getattr(owner, name) for name in names], set_to


def _compiler_settings() -> dict[str, dict[str, Any]]:
    """Return the scalar settings of the compiler, by its modules."""
    modules = {name: sys.modules[name] for name in _COMPILER if name in sys.modules}
    found = {name: module.get_config_copy() for name, module in modules.items()}
    return {name: {key: value for key, value in of.items() if isinstance(value, _SCALARS)} for name, of in found.items()}


@functools.cache
def _compiler_at_first() -> dict[str, dict[str, Any]]:
    return _compiler_settings()


def _compiler_changes() -> dict[str, dict[str, Any]]:
    """Return the compiler's settings that have changed since `fix`, where deterministic algorithms import the
    compiler."""
    first = _compiler_at_first()
    changed = {
        name: {key: value for key, value in of.items() if value != first[name].get(key)}
        for name, of in _compiler_settings().items()
        if name in first
    }
    return {name: of for name, of in changed.items() if of}


def _change_compiler(changes: dict[str, dict[str, Any]]) -> None:
    for name, now in _compiler_settings().items():
        wanted = {**_compiler_at_first().get(name, {}), **changes.get(name, {})}
        for key in [key for key, value in now.items() if key in wanted and wanted[key] != value]:
            setattr(sys.modules[name], key, wanted[key])


FLAGS: Final[dict[str, Flag]] = {
    "default dtype": (
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda value: torch.set_default_dtype(getattr(torch, value)),
    ),
    "gradients": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "matmul precision": (_matmul_precision, lambda value: value and torch.set_float32_matmul_precision(value)),
    "precisions": (lambda: [each.fp32_precision for each in _precision_owners()], _set_precisions),
    "cudnn": (lambda: _CUDNN.enabled, lambda value: setattr(_CUDNN, "enabled", value)),
    "cudnn benchmark": _attributes(_CUDNN, "benchmark"),
    "reduced precision fp16": (
        lambda: bool(_CUDA.matmul.allow_fp16_reduced_precision_reduction),
        lambda value: setattr(_CUDA.matmul, "allow_fp16_reduced_precision_reduction", value),
    ),
    "reduced precision bf16": (
        lambda: bool(_CUDA.matmul.allow_bf16_reduced_precision_reduction),
        lambda value: setattr(_CUDA.matmul, "allow_bf16_reduced_precision_reduction", value),
    ),
    **{
        f"attention {kind}": (getattr(_CUDA, f"{kind}_sdp_enabled"), getattr(_CUDA, f"enable_{kind}_sdp"))
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    },
    "order of contractions": _attributes(torch.backends.opt_einsum, "enabled", "strategy"),
    "mkldnn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "quantized": _attributes(torch.backends.quantized, "engine"),
    "anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "deterministic": (
        torch._C._get_deterministic_algorithms,
        lambda value: torch.use_deterministic_algorithms(value, warn_only=True),
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "autocast": (
        lambda: [[kind, torch.is_autocast_enabled(kind), _name(torch.get_autocast_dtype(kind))] for kind in _KINDS],
        _set_autocast,
    ),
    "parameters at conversion": (
        torch.__future__.get_overwrite_module_params_on_conversion,
        torch.__future__.set_overwrite_module_params_on_conversion,
    ),
    "compiler": (_compiler_changes, _change_compiler),
    "checks of distributions": _attributes(torch.distributions.Distribution, "_validate_args"),
    "printing": (lambda: dict(vars(torch._tensor_str.PRINT_OPTS)), vars(torch._tensor_str.PRINT_OPTS).update),
}
"""Global settings of PyTorch that a program may set, and its loop may change. Their values go through JSON."""


def flags() -> dict[str, Any]:
    """Return the values of all `FLAGS`."""
    return {name: get() for name, (get, _set) in FLAGS.items()}


def set_flags(was: dict[str, Any]) -> None:
    """Set the flags that have other values now."""
    for name, value in was.items():
        get, set_flag = FLAGS[name]
        if get() != value:
            set_flag(value)


def fix(seed: int, threads: int) -> None:
    """Fix the seed, the number of threads, and deterministic algorithms; where CUDA has none, PyTorch warns.

    If the user sets the number of threads by an environment variable, PyTorch already has it.
    """
    torch.manual_seed(seed)
    if not any(os.environ.get(name) for name in _THREADS):
        torch.set_num_threads(threads)
    refix()
    _compiler_at_first()


def refix() -> None:
    """Set again the settings that decide about bits and that a program may have changed."""
    if not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling memory that is overwritten anyway takes time, and makes no defined result repeat.
    torch.utils.deterministic.fill_uninitialized_memory = False
    if _CUDNN.benchmark and torch.cuda.is_available():
        messages.say("torch.backends.cudnn.benchmark is switched off: it chooses kernels by time, so bits by chance")
    _CUDNN.benchmark = False
    _CUDNN.deterministic = True
    # TorchScript differentiates a function's first call op by op, and later ones by formulas with other bits.
    torch._C._jit_set_profiling_mode(False)


def environment() -> dict[str, str]:
    """Return the processor's capability as PyTorch sees it, and the devices."""
    found = {"torch cpu": torch.backends.cpu.get_cpu_capability()}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        found["torch devices"] = ", ".join(names)
        found["torch cuda"] = f"{torch.version.cuda} cudnn {_CUDNN.version()}"
    elif (device := torch.accelerator.current_accelerator(check_available=True)) is not None:
        found["torch devices"] = f"{torch.accelerator.device_count()} of the kind {device.type}"
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class GlobalHooks:
    """The count of hooks, which is state, and the hooks of the process, which are reported if a loop changes them."""

    def __init__(self) -> None:
        self._before = _global()

    def begin_phase(self) -> None:
        """Note the hooks that exist now: a resumed process has them, too."""
        self._before = _global()

    def count(self) -> int:
        """Return the number of the next hook: two hooks of one number would be one."""
        return int(RemovableHandle.next_id)

    def set_count(self, count: int) -> None:
        """Set the number of the next hook; hooks that a resumed run has made on its way have lower numbers."""
        RemovableHandle.next_id = count

    def uncaptured(self) -> list[str]:
        """Return descriptions of cached weights, and of changes by the loop to hooks of all modules or optimizers."""
        now = _global()
        return [*_kept(), *(f"hooks of every {name.partition(' ')[0]}" for name, held in now.items() if held != self._before[name])]


def _kept() -> list[str]:
    """Return descriptions of weights in other forms that PyTorch caches while a loop is inside a `with`: a resumed run
    would make them anew, from weights that have been trained since.
    """
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    found = []
    if depth and torch.is_autocast_cache_enabled():
        found.append("weights that `torch.autocast` around the loop has converted and keeps")
    if parametrize._cache:
        found.append("what `parametrize.cached` around the loop keeps")
    return found


def _global() -> dict[str, list[tuple[int, int]]]:
    return {name: [(key, id(hook)) for key, hook in held.items()] for name, held in _GLOBAL.items() if isinstance(held, dict)}
