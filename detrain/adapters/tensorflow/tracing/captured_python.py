"""The Python values that a compiled function reads as it is traced: they are constants in the trace.

A function that reads values which the loop sets (`min(1.0, epoch / 10)`, `self.beta`) is traced in the run's first
batch, with the values of that moment. A resumed run traces it ahead of the cut; to get the same function, it puts these
values in place during the trace. A walk finds them: it starts at the function, and goes over all that its code can
reach by names: variables of closures, globals, attributes and contents of objects. Values are data or objects with
names: variables, models and optimizers, functions and classes of the program, members of enumerations. Values that the
loop has set on Keras's objects are put in place, too (`keras.state`). If all of this misses a value, the digest of the
trace differs (`BuiltUnit.forms`), and the run is refused.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tensorflow.python.eager.polymorphic_function import polymorphic_function, tf_method_target
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.json_values import Description, NoDataError, ValueDescriptions
from detrain.base.plain_types import BASES
from detrain.python.codec.state_rules import has_contents
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.frames import is_user_file
from detrain.python.inspect.held import walk
from detrain.python.inspect.live_names import codes_in
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.names import is_own_class, is_user_module, own_attributes, slots_of
from detrain.python.inspect.object_graph import ABSENT
from detrain.python.inspect.stored_attributes import is_of_framework, program_names, stores

PathPart = tuple[str, Any]
"""A step from one object to another: its kind (see `_lead`), and a name or key."""
Read = tuple[list[PathPart], Description]
"""The way from the function to a value, and the value as data."""
_Found = tuple[list[PathPart], Any]
"""The way to an object, and the object."""

_MOST_OBJECTS: Final = 4000
_MOST_DEPTH: Final = 16
_MOST_ITEMS: Final = 64
_MOST_TEXT: Final = 1 << 14
"""The longest text of a value that is kept, because a checkpoint stores the values for each function."""
_ANY: Final = frozenset(
    {"getattr", "vars", "__dict__", "__getattribute__", "globals", "eval", "exec", "asdict", "astuple", "fields", "attrgetter"}
)
"""Names which show that code may read attributes under any name."""
_WAYS: Final = frozenset(
    {
        *("_layers", "_compile_loss", "_user_loss", "_compile_metrics", "_user_metrics", "_metrics", "_losses", "_flat_losses"),
        *("loss", "losses", "fn", "_fn", "function", "activation", "_optimizer", "optimizer", "_learning_rate"),
        *("kernel_regularizer", "bias_regularizer", "activity_regularizer", "kernel_constraint", "bias_constraint"),
    }
)
"""Attributes of Keras's objects that lead to objects which the program may have made."""
_HOLDERS: Final = frozenset({"types", "argparse", "collections"})
"""Python's modules with classes whose objects hold the program's values."""
_FUNCTIONS: Final = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
_PARTS: Final[dict[str, tuple[Any, Callable[[Any, Any], object]]]] = {
    "global": (types.FunctionType, lambda value, name: value.__globals__.get(name, ABSENT)),
    "wrapped": (types.FunctionType, lambda value, _: getattr(value, "__wrapped__", ABSENT)),
    "defaults": (types.FunctionType, lambda value, _: value.__defaults__ or ABSENT),
    "keyword defaults": (types.FunctionType, lambda value, _: value.__kwdefaults__ or ABSENT),
    "self": (types.MethodType, lambda value, _: value.__self__),
    "function": (types.MethodType, lambda value, _: value.__func__),
    "target": (tf_method_target.TfMethodTarget, lambda value, _: value.target),
    "python function": (polymorphic_function.Function, lambda value, _: value.python_function),
    "partial": (functools.partial, getattr),
    "class": (object, lambda value, _: type(value)),
    "base": (type, lambda value, number: value.__mro__[number] if number < len(value.__mro__) else ABSENT),
}
"""The kinds of steps to a part of an object: the object's class, and the function that returns the part."""


class CapturedReads:
    """The finder of such values, which also puts them in place. `births` has the names of objects."""

    def __init__(self, births: Births) -> None:
        self._descriptions = ValueDescriptions(births)

    def reads(self, function: Any, owner: object) -> list[Read]:
        """Return the values that a function may read as it is traced.

        `owner` is the object of Keras that made the function, or None.
        """
        first: list[_Found] = [([], function), *([([("owner", None)], owner)] if owner is not None else [])]
        code = _Code(self._describe)
        # An edge: the walk looks at objects of all kinds; values that it misses show in the trace.
        with contextlib.suppress(Exception):
            collections.deque(walk(first, code.below, lambda found: id(found[1]), is_wide=True, most=_MOST_OBJECTS), 0)
        return code.values_read()

    @contextlib.contextmanager
    def as_read(self, function: Any, owner: object, values: Sequence[Read]) -> Iterator[None]:
        """Put these values in place, and put the former ones back; other values that the code inside sets stay."""
        undo: list[Callable[[], None]] = []
        for way, described in values:
            with contextlib.suppress(Exception):  # an edge, as above
                self._put_in_place(function, owner, [tuple(step) for step in way], described, undo)
        try:
            yield
        finally:
            for each in reversed(undo):
                each()

    def _put_in_place(
        self, function: Any, owner: object, way: list[Any], described: Description, undo: list[Callable[[], None]]
    ) -> None:
        is_of_owner = way[0][0] == "owner"
        holder = _follow(owner if is_of_owner else function, way[1 if is_of_owner else 0 : -1])
        kind, name = way[-1]
        if not _is_settable(holder, kind, name):
            return
        now = _lead(holder, kind, name)
        if now is not ABSENT and self._describe(now) in (described, None):
            return
        undo.append(self._put(holder, kind, name, now, self._descriptions.recall(described)))

    def _describe(self, value: Any) -> Description | None:
        """Return a value in a form that JSON can hold; None if it is not data and has no name, or is too large."""
        try:
            return self._descriptions.describe(value)
        except NoDataError:
            return None

    def _put(self, holder: Any, kind: str, name: Any, now: Any, value: Any) -> Callable[[], None]:
        """Put a value in place; return a function to put the former one back, unless the place holds no data then."""
        for cls in BASES:
            if isinstance(now, cls) and isinstance(value, cls):  # it stays the same object for all who hold it
                before = list(now.items()) if isinstance(now, dict) else list(now)
                _fill(now, value.items() if isinstance(value, dict) else value)
                return lambda: _fill(now, before)
        _set(holder, kind, name, value)

        def put_back() -> None:
            left = _lead(holder, kind, name)
            if left is value or self._describe(left) is not None:
                _set(holder, kind, name, now)

        return put_back


class _Code:
    """The values that code can reach, with the ways to them, and the names that it reads."""

    def __init__(self, describe: Callable[[Any], Description | None]) -> None:
        files = [getattr(module, "__file__", None) or "" for module in user_modules().values()]
        self._outside = frozenset[str]().union(*(stores(file).outside for file in files))
        self._describe = describe
        self._names: set[str] = set()
        self._values: list[tuple[list[PathPart], Any, bool]] = []
        """Ways, values, and whether only the program's code reads that place: then it does so by the name."""

    def values_read(self) -> list[Read]:
        """Return the values whose names the code reads."""
        is_any = not self._names.isdisjoint(_ANY)
        found = []
        for way, described, is_of_program in self._values:
            kind, name = way[-1]
            is_read = kind not in ("attribute", "slot") or not is_of_program or is_any or name in self._names
            if is_read and len(str(described)) <= _MOST_TEXT:
                found.append((way, described))
        return found

    def below(self, found: _Found) -> Iterator[_Found]:
        """Yield the objects that an object leads to; note the values in it."""
        way, value = found
        is_of_program = isinstance(value, types.ModuleType | type) or is_own_class(type(value))
        for step in self._steps(value):
            held = _lead(value, *step)
            if held is ABSENT:
                continue
            if _is_settable(value, *step) and (described := self._describe(held)) is not None:
                self._values.append(([*way, step], described, is_of_program))
            if len(way) < _MOST_DEPTH:
                yield [*way, step], held

    def _steps(self, value: Any) -> list[PathPart]:
        if isinstance(value, types.FunctionType):
            return self._steps_of_function(value)
        if isinstance(value, types.MethodType):
            return [("self", None), ("function", None)]
        if isinstance(value, tf_method_target.TfMethodTarget):
            return [("target", None)]
        if isinstance(value, polymorphic_function.Function):
            return [("python function", None)]
        if isinstance(value, functools.partial):
            return [("partial", name) for name in ("func", "args", "keywords")]
        if is_enum(type(value)):
            return [("class", None)]
        if isinstance(value, types.ModuleType):
            return [("attribute", name) for name in list(vars(value)) if name[:2] != "__"] if is_user_module(value) else []
        if isinstance(value, type):
            return self._steps_of_class(value)
        found: list[PathPart] = [("class", None)] if is_own_class(type(value)) else []
        if isinstance(value, list | tuple | dict):
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            found += [("item", key) for key in keys[:_MOST_ITEMS] if type(key) in (str, int)]
        return [*found, *self._steps_of_attributes(value)]

    def _steps_of_class(self, value: type) -> list[PathPart]:
        if not is_own_class(value):
            return []
        names = [name for name, item in list(vars(value).items()) if name[:2] != "__" or isinstance(item, _FUNCTIONS)]
        bases = [number for number, base in enumerate(value.__mro__) if number and is_own_class(base)]
        return [*(("attribute", name) for name in names), *(("base", number) for number in bases)]

    def _steps_of_attributes(self, value: Any) -> list[PathPart]:
        is_known = is_own_class(type(value)) or type(value).__module__ in _HOLDERS
        if not is_known and not any(is_of_framework(base) for base in type(value).__mro__):
            return []  # a library's object: a logger leads to `open`, and so to detrain's own state
        own = own_attributes(value)
        names = [] if own is None or isinstance(value, data_structures.ListWrapper) else list(own)
        ways: list[PathPart] = []
        if any(is_of_framework(base) for base in type(value).__mro__):
            chosen = program_names(type(value), self._outside, names)
            ways = [("way", name) for name in names if name in _WAYS - chosen]
            names = [name for name in names if name in chosen]
        slots = [name for name in slots_of(type(value)) if name[:2] != "__"] if is_own_class(type(value)) else []
        return [*ways, *(("attribute", name) for name in names), *(("slot", name) for name in slots)]

    def _steps_of_function(self, function: types.FunctionType) -> list[PathPart]:
        is_ours = str(function.__module__).partition(".")[0] == "detrain"
        found: list[PathPart] = [] if is_ours else [("variable", name) for name in function.__code__.co_freevars]
        if hasattr(function, "__wrapped__"):
            found.append(("wrapped", None))
        if not is_user_file(function.__code__.co_filename):
            return found
        found += [("attribute", name) for name in vars(function) if name[:2] != "__" and not name.startswith("ag_")]
        found += [("defaults", None), ("keyword defaults", None)]
        names = self._names_in(function.__code__)
        return [*found, *(("global", name) for name in sorted(names) if name in function.__globals__)]

    def _names_in(self, code: types.CodeType) -> set[str]:
        """Return the names read by code and by the functions defined in it."""
        names = {name for each in codes_in(code) for name in each.co_names}
        self._names |= names
        return names


def _follow(value: Any, way: Sequence[Any]) -> Any:
    for kind, name in way:
        value = ABSENT if value is ABSENT else _lead(value, kind, name)
    return value


def _lead(value: Any, kind: str, name: Any) -> Any:
    """Return the object that a step leads to, without calling hooks of classes; ABSENT if it leads nowhere."""
    if kind in _PARTS:
        cls, part = _PARTS[kind]
        return part(value, name) if isinstance(value, cls) else ABSENT
    match kind:
        case "variable":
            cell = _cell(value, name)
            return cell.cell_contents if cell is not None and has_contents(cell) else ABSENT
        case "attribute" | "way":
            return _plain(_own(value).get(name, ABSENT))
        case "slot" if name in (slots := slots_of(type(value))):
            try:
                return slots[name].__get__(value)
            except AttributeError:
                return ABSENT
        case "item" if isinstance(value, dict):
            return (
                dict.get(value, name, ABSENT) if issubclass(type(value), dict) else value.get(name, ABSENT)
            )  # TensorFlow's proxy of a dict
        case "item" if isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
            return value[name]
    return ABSENT


def _plain(value: Any) -> Any:
    """Return the function behind a property, cached property, static or class method; other values as they are."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _own(value: Any) -> Any:
    return vars(value) if isinstance(value, type | types.ModuleType) else own_attributes(value) or {}


def _cell(function: Any, name: str) -> types.CellType | None:
    names = function.__code__.co_freevars if isinstance(function, types.FunctionType) else ()
    return function.__closure__[names.index(name)] if name in names and function.__closure__ else None


def _is_settable(holder: Any, kind: str, name: Any) -> bool:
    match kind:
        case "variable" | "global":
            return isinstance(holder, types.FunctionType)
        case "item":
            return isinstance(holder, dict) or (isinstance(holder, list) and isinstance(name, int) and name < len(holder))
        case "slot":
            return name in slots_of(type(holder))
        case "attribute" if isinstance(holder, type):
            return not isinstance(vars(holder).get(name), _FUNCTIONS) and not is_enum(holder)
    return kind == "attribute" and holder is not ABSENT and own_attributes(holder) is not None


def _set(holder: Any, kind: str, name: Any, what: Any) -> None:
    """Bind the place that a step leads to; ABSENT: unbind it."""
    is_gone = what is ABSENT
    with contextlib.suppress(AttributeError, KeyError, ValueError):  # unbound already
        match kind:
            case "variable" if (cell := _cell(holder, name)) is not None:
                if is_gone:
                    del cell.cell_contents
                else:
                    cell.cell_contents = what
            case "slot":
                slot = slots_of(type(holder))[name]
                slot.__delete__(holder) if is_gone else slot.__set__(holder, what)
            case "attribute" if isinstance(holder, type):
                type.__delattr__(holder, name) if is_gone else type.__setattr__(holder, name, what)
            case "global" | "attribute" | "item":
                held = holder.__globals__ if kind == "global" else holder if kind == "item" else _own(holder)
                if is_gone:
                    del held[name]
                else:
                    held[name] = what


def _fill(held: Any, content: Any) -> None:
    held.clear()
    held.update(content) if isinstance(held, dict | set) else held.extend(content)
