"""What a compiled function reads of Python as it is traced: it is a constant in the trace.

A function that reads what the loop sets (`min(1.0, epoch / 10)`, `self.beta`) is traced in the first batch of the run, with the
values of that moment. A resumed run traces it ahead of the cut; so that it becomes the same function, these values are put in place
for as long as it is traced. They are found by a walk from the function over what its code can reach by names: variables of
closures, globals, attributes and contents of objects. What it misses shows in the digest of the trace (`Unit.forms`): refused.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tensorflow.python.eager.polymorphic_function import polymorphic_function, tf_method_target

from detrain.frameworks.keras_settings import contents_of, made_of
from detrain.runtime.capture import user_modules
from detrain.runtime.derived import is_of_framework, program_names, stores
from detrain.runtime.frames import is_user_file
from detrain.runtime.graph import ABSENT
from detrain.runtime.kinds import has_contents
from detrain.runtime.naming import is_own_class, is_user_module, own_attributes

Step = tuple[str, Any]
"""How one comes from an object to what it leads to: the kind of the way (see `_lead`), and a name or key."""
Read = tuple[list[Step], Any]
"""The way to a value from the function, and the value, as data."""

_MOST_OBJECTS: Final = 4000
_MOST_DEPTH: Final = 12
_MOST_ITEMS: Final = 64
_MOST_TEXT: Final = 4096
"""Values that take more are not kept: a checkpoint has them for each function."""
_ANY: Final = frozenset({"getattr", "vars", "__dict__", "__getattribute__", "globals", "eval", "exec"})
"""Code with one of these names reads attributes under any name."""


def reads(function: Any, owner: object) -> list[Read]:
    """Return the values that a function may read as it is traced; `owner` is the object of Keras's that has made it, or None."""
    walk = _Walk()
    walk.visit([], function)
    if owner is not None:
        walk.visit([("owner", None)], owner)
    return walk.found()


@contextlib.contextmanager
def as_read(function: Any, owner: object, values: Sequence[Read]) -> Iterator[None]:
    """Put these values in place, and put back what was there; what the code inside has put there besides stays."""
    undo = []
    for way, described in values:
        steps = [tuple(step) for step in way]
        start = owner if steps[0][0] == "owner" else function
        holder = _follow(start, steps[1 if steps[0][0] == "owner" else 0 : -1])
        kind, name = steps[-1]
        now = ABSENT if holder is ABSENT else _lead(holder, kind, name)
        if not _is_settable(holder, kind, name) or (now is not ABSENT and contents_of(now) in (described, None)):
            continue
        undo.append(_put(holder, kind, name, now, made_of(described)))
    try:
        yield
    finally:
        for each in reversed(undo):
            each()


class _Walk:
    """A walk over what code can reach, and what it has found: values, after the ways to them and the names that are read there."""

    def __init__(self) -> None:
        self._outside = frozenset[str]().union(
            *(stores(getattr(each, "__file__", None) or "").outside for each in user_modules().values())
        )
        self._seen: dict[int, object] = {}
        self._codes: set[types.CodeType] = set()
        self._names: set[str] = set()
        self._values: list[tuple[list[Step], Any]] = []

    def found(self) -> list[Read]:
        """Return the values whose names the code reads."""
        is_any = not self._names.isdisjoint(_ANY)
        kept = []
        for way, value in self._values:
            kind, name = way[-1]
            if kind == "attribute" and name not in self._names and not is_any:
                continue
            described = contents_of(value)
            if described is not None and len(str(described)) <= _MOST_TEXT:
                kept.append((way, described))
        return kept

    def visit(self, way: list[Step], start: object) -> None:
        """Go over all that an object leads to, the nearest first."""
        waiting = collections.deque([(way, start)])
        while waiting and len(self._seen) < _MOST_OBJECTS:
            way, value = waiting.popleft()
            if value is ABSENT:
                continue
            if way and way[-1][0] in _SETTABLE and contents_of(value) is not None:
                self._values.append((way, value))
                continue
            if id(value) in self._seen or len(way) > _MOST_DEPTH:
                continue
            self._seen[id(value)] = value
            waiting += [([*way, step], _lead(value, *step)) for step in self._steps(value)]

    def _steps(self, value: Any) -> list[Step]:
        if isinstance(value, types.FunctionType):
            return self._steps_of_function(value)
        if isinstance(value, types.MethodType):
            return [("self", None), ("function", None)]
        if isinstance(value, tf_method_target.TfMethodTarget):
            return [("target", None)]
        if isinstance(value, polymorphic_function.Function):
            return [("python function", None)]
        if isinstance(value, list | tuple | dict):
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            return [("item", key) for key in keys[:_MOST_ITEMS] if type(key) in (str, int)]
        if isinstance(value, types.ModuleType):
            return [("attribute", name) for name in list(vars(value)) if name in self._names] if is_user_module(value) else []
        if isinstance(value, type):
            return [("attribute", name) for name in vars(value) if name[:2] != "__"] if is_own_class(value) else []
        own = own_attributes(value)
        if own is None:
            return [("class", None)] if is_own_class(type(value)) else []
        names = list(own)
        if is_of_framework(type(value)) or any(is_of_framework(base) for base in type(value).__mro__):
            chosen = program_names(type(value), self._outside, names)
            names = [name for name in names if name in chosen]
        return [*(("attribute", name) for name in names), *([("class", None)] if is_own_class(type(value)) else [])]

    def _steps_of_function(self, function: types.FunctionType) -> list[Step]:
        found: list[Step] = [("variable", name) for name in function.__code__.co_freevars]
        if hasattr(function, "__wrapped__"):
            found.append(("wrapped", None))
        if not is_user_file(function.__code__.co_filename):
            return found
        names = self._names_in(function.__code__)
        return [*found, *(("global", name) for name in sorted(names) if name in function.__globals__)]

    def _names_in(self, code: types.CodeType) -> set[str]:
        """Return the names that code reads, with the code of functions in it."""
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._names_in(constant)
        self._names |= names
        return names


_SETTABLE: Final = frozenset({"variable", "global", "attribute", "item"})


def _follow(value: Any, way: Sequence[Any]) -> Any:
    for kind, name in way:
        value = ABSENT if value is ABSENT else _lead(value, kind, name)
    return value


def _lead(value: Any, kind: str, name: Any) -> Any:
    """Return what a step leads to, past the hooks of classes; ABSENT if it leads nowhere."""
    match kind:
        case "variable" | "global" | "wrapped" if not isinstance(value, types.FunctionType):
            return ABSENT
        case "variable":
            cell = _cell(value, name)
            return cell.cell_contents if cell is not None and has_contents(cell) else ABSENT
        case "global":
            return value.__globals__.get(name, ABSENT)
        case "wrapped":
            return getattr(value, "__wrapped__", ABSENT)
        case "self":
            return getattr(value, "__self__", ABSENT)
        case "function":
            return getattr(value, "__func__", ABSENT)
        case "target":
            return value.target if isinstance(value, tf_method_target.TfMethodTarget) else ABSENT
        case "python function":
            return value.python_function if isinstance(value, polymorphic_function.Function) else ABSENT
        case "class":
            return type(value)
        case "attribute":
            found = _own(value).get(name, ABSENT)
            return getattr(found, "__func__", found) if isinstance(found, staticmethod | classmethod) else _of_property(found)
        case "item" if isinstance(value, dict):
            return value.get(name, ABSENT)
        case "item" if isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
            return value[name]
    return ABSENT


def _of_property(value: object) -> Any:
    return value.fget if isinstance(value, property) else value


def _is_settable(holder: Any, kind: str, name: Any) -> bool:
    match kind:
        case "variable" | "global":
            return isinstance(holder, types.FunctionType)
        case "item":
            return isinstance(holder, dict) or (isinstance(holder, list) and isinstance(name, int) and name < len(holder))
    return kind == "attribute" and holder is not ABSENT and (isinstance(holder, type) or own_attributes(holder) is not None)


def _own(value: Any) -> Any:
    return vars(value) if isinstance(value, type | types.ModuleType) else own_attributes(value) or {}


def _cell(function: types.FunctionType, name: str) -> types.CellType | None:
    names = function.__code__.co_freevars
    return function.__closure__[names.index(name)] if name in names and function.__closure__ else None


def _put(holder: Any, kind: str, name: Any, now: Any, value: Any) -> Any:
    """Put a value in place; return what puts back what was there, unless it is no data any more."""
    if type(now) is type(value) and isinstance(now, list | dict):  # the same object for all that hold it
        before = now.copy()
        _fill(now, value)
        return lambda: _fill(now, before)

    def put(what: Any) -> None:
        match kind:
            case "variable" if (cell := _cell(holder, name)) is not None:
                if what is ABSENT:
                    with contextlib.suppress(ValueError):
                        del cell.cell_contents
                else:
                    cell.cell_contents = what
            case "attribute" if isinstance(holder, type):
                type.__delattr__(holder, name) if what is ABSENT else type.__setattr__(holder, name, what)
            case "global" | "attribute" | "item":
                held = holder.__globals__ if kind == "global" else holder if kind == "item" else _own(holder)
                if what is ABSENT and name in held:
                    del held[name]
                elif what is not ABSENT:
                    held[name] = what

    def put_back() -> None:
        left = _lead(holder, kind, name)
        if left is value or contents_of(left) is not None:
            put(now)

    put(value)
    return put_back


def _fill(held: Any, content: Any) -> None:
    held.clear()
    held.update(content) if isinstance(held, dict) else held.extend(content)
