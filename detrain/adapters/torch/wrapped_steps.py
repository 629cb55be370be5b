"""The wrappers that PyTorch puts around the `step` of an optimizer: one into its class, when the class's first object
is made; one into the optimizer, when its first scheduler is made. And the wrappers that torchmetrics puts around
`update` and `compute` of a metric. They are described by the objects inside, and made again from the libraries' own
code.

And modules that `torch.jit` has compiled: their state lies in C++, and is read and set by the names of attributes.
"""

from __future__ import annotations

import functools
import weakref
from types import CellType, CodeType, FunctionType
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from detrain.python.codec.state_rules import has_contents
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.names import class_name

SCRIPTED: Final = "torch.script"
_OF_WRAPPER: Final = frozenset(
    {"_c", "_concrete_type", "_initializing", "_modules", "_parameters", "_buffers", "forward", "training"}
)
"""Attributes that the Python object around a compiled module holds for itself."""


def _code_inside(function: Any, *path: str) -> CodeType | None:
    """Return the code of a function that is defined inside another; None if this PyTorch has none of this name."""
    code: CodeType | None = getattr(function, "__code__", None)
    for name in path:
        inside = () if code is None else code.co_consts
        code = next((each for each in inside if isinstance(each, CodeType) and each.co_name == name), None)
    return code


_SCHEDULED: Final = _code_inside(LRScheduler.__init__, "patch_track_step_called", "wrap_step", "wrapper")
_METRIC: Final = "torchmetrics.metric:Metric"
_HOOKED: Final = _code_inside(Optimizer.profile_hook_step, "wrapper")


def parts(value: FunctionType) -> tuple[str, list[object]] | None:
    """Return the kind of a wrapper and the objects inside; None for any other function, and for wrappers in PyTorch's
    own classes, which exist in every process.
    """
    code = value.__code__
    if not all(map(has_contents, value.__closure__ or ())):
        return None
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    if code is _HOOKED and code.co_freevars == ("func",) and has_user_code(cells[0]):
        return "torch.hooked", cells
    if code is _SCHEDULED and code.co_freevars == ("func", "opt_ref"):
        function, optimizer = cells[0], cells[1]()
        return "torch.scheduled", [optimizer] if function is type(optimizer).step else [optimizer, function]
    name = next((name for name in ("update", "compute") if code.co_qualname.endswith(f"._wrap_{name}.<locals>.wrapped_func")), "")
    inside = dict(zip(code.co_freevars, cells, strict=True)) if name else {}
    metric, around = inside.get("self"), inside.get(name)
    is_metric = any(class_name(each) == _METRIC for each in type(metric).__mro__)
    if (
        is_metric
        and getattr(around, "__self__", None) is metric
        and getattr(around, "__func__", None) is getattr(type(metric), name)
    ):
        return f"torch.metric {name}", [metric]
    return None


def remake(kind: str, inside: list[Any], current: Any) -> object | None:
    """Return the wrapper of a kind around these objects: `current` if it is that."""
    if any(each is None for each in inside):  # by identity: `==` with a metric would make another metric
        return None
    now = parts(current) if isinstance(current, FunctionType) else None
    if now is not None and now[0] == kind and list(map(id, now[1])) == list(map(id, inside)):
        return current  # type: ignore[no-any-return]
    if kind.startswith("torch.metric "):
        name, metric = kind.removeprefix("torch.metric "), inside[0]
        return getattr(metric, f"_wrap_{name}")(getattr(type(metric), name).__get__(metric))  # type: ignore[no-any-return]
    if kind == "torch.hooked":
        hooked: Any = Optimizer.profile_hook_step(inside[0])
        hooked.hooked = True
        return hooked  # type: ignore[no-any-return]
    if _SCHEDULED is None:
        return None
    function = inside[1] if len(inside) > 1 else type(inside[0]).step
    cells = (CellType(function), CellType(weakref.ref(inside[0])))
    made: Any = functools.wraps(function)(FunctionType(_SCHEDULED, LRScheduler.__init__.__globals__, closure=cells))
    made._wrapped_by_lr_sched = True
    return made  # type: ignore[no-any-return]


def scripted_parts(value: Any) -> list[object]:
    """Return the parts of a compiled module: the module itself, which exists only in a process that has compiled it,
    its attributes (tensors, numbers, lists) by submodule, and the attributes of the Python object.
    """
    attributes = {name: _attributes(module) for name, module in _modules(value._c)}
    own = {name: item for name, item in vars(value).items() if name not in _OF_WRAPPER and not name.startswith("__")}
    return [value._c, attributes, own]


def remade_scripted(values: list[Any], current: Any) -> object | None:
    """Give the live module the attributes that `scripted_parts` has returned; its tensors were put back in place."""
    if not isinstance(current, torch.jit.ScriptModule) or values[0] is not current._c:
        return None
    _handle, attributes, own = values
    for name, module in _modules(current._c):
        now = _attributes(module)
        for attribute, item in attributes.get(name, {}).items():
            if now.get(attribute) is not item:
                module.setattr(attribute, item)
    for name in [name for name in vars(current) if name not in own and name not in _OF_WRAPPER and not name.startswith("__")]:
        del vars(current)[name]
    vars(current).update(own)
    return current  # type: ignore[no-any-return]


def _modules(compiled: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = torch._C._jit_debug_module_iterators(compiled)["named_modules"]
    return found


def _attributes(module: Any) -> dict[str, Any]:
    """Return all attributes of a compiled module by name, except submodules."""
    inside = torch._C._jit_debug_module_iterators(module)
    found = dict(inside["named_attributes"]) | dict(inside["named_parameters"]) | dict(inside["named_buffers"])
    modules = dict(inside["named_children"])
    return {name: item for name, item in found.items() if name not in modules}
