"""Modules that `torch.jit` has compiled: their state lies in C++, and is read and set by its names."""

from __future__ import annotations

from typing import Any, Final

import torch

KIND: Final = "torch.script"
_OF_WRAPPER: Final = frozenset(
    {"_c", "_concrete_type", "_initializing", "_modules", "_parameters", "_buffers", "forward", "training"}
)
"""What the Python object around such a module holds for itself."""


def parts(value: Any) -> list[object]:
    """Return what one is made of: the compiled module itself, which only a process that has compiled it has, and its
    attributes (tensors, numbers, lists, by the module inside that has them), then those of the Python object.
    """
    attributes = {name: _attributes(module) for name, module in _modules(value._c)}
    own = {name: item for name, item in vars(value).items() if name not in _OF_WRAPPER and not name.startswith("__")}
    return [value._c, attributes, own]


def remake(values: list[Any], current: Any) -> object | None:
    """Give the live module the attributes that one had; its tensors were put back in place."""
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
    """Return all attributes of a compiled module that are no modules, by name."""
    inside = torch._C._jit_debug_module_iterators(module)
    found = dict(inside["named_attributes"]) | dict(inside["named_parameters"]) | dict(inside["named_buffers"])
    modules = dict(inside["named_children"])
    return {name: item for name, item in found.items() if name not in modules}
