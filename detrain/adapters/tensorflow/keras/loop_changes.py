"""What a loop sets on Keras's objects: noted as it is set, and compared with what it was before the loop.

Losses, schedules, regularizers and constraints of Keras's own classes have no variables, and anything that a loop sets
on them is state, however it is set: `setattr(loss, name, value)`, or `loss._fn_kwargs["delta"] = 0.5`, which no look at
the program's source shows. Numbers, texts and functions are captured as on layers; lists, dicts and arrays by what they
hold. In objects of the program's classes the walk over Python's state finds these.

The masks of dropout that recurrent cells keep from call to call, where a program calls the cells itself, are drawn at
the first call, and stay until the cell is told to drop them. They are captured; those that building ahead has left are
no tensors that anything could use.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.json_values import ARRAYS, SCALARS, NoDataError, ValueDescriptions
from detrain.base.errors import Diverged
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.names import computes, find_static, is_findable, is_own_class, static_name
from detrain.python.inspect.object_graph import ABSENT

_BUILDING: Final = frozenset({"built", "_called", "_built", "_is_graph_network", "_jit_compile", "_run_eagerly"})
"""Say how far an object is built, or compiled: so in a resumed process when it is."""
SEEDS_2: Final = "_random_generator"
"""What layers of Keras 2 draw by: given a seed, it counts that up with each draw."""

Constants = dict[str, dict[str, dict[str, Any]]]
"""Of objects: parts of their state (`attributes`, `functions`, `settings`), each by name."""
_HOLDERS: Final = (list, tuple, dict, *ARRAYS)
MASKS: Final = ("_dropout_mask", "_recurrent_dropout_mask")
_CACHES: Final = ("_dropout_mask_cache", "_recurrent_dropout_mask_cache")
"""Where cells of Keras 2 keep them, by the graph; those of no graph under an object that is none."""


def scalars(value: Any) -> dict[str, Any]:
    """Return the numbers, texts and truths in an object's attributes."""
    return {name: item for name, item in list(vars(value).items()) if type(item) in SCALARS and name not in _BUILDING}


def _is_named_function(value: Any) -> bool:
    """Return whether a value is a function that its name leads to: the program's, or a library's that only computes."""
    return computes(value) or (isinstance(value, types.FunctionType) and is_findable(value))


def functions_of(value: Any) -> dict[str, str]:
    """Return the names of the functions in an object's attributes that have one, by attribute."""
    return {name: static_name(item) for name, item in list(vars(value).items()) if _is_named_function(item)}


def set_functions(state: dict[str, dict[str, str]], objects: dict[str, Any]) -> None:
    """Set the functions in attributes that are others than at the checkpoint."""
    for key in state.keys() & objects.keys():
        own, now = vars(objects[key]), functions_of(objects[key])
        for name, function in state[key].items():
            found = find_static(function) if name in own and now.get(name) != function else ABSENT
            if _is_named_function(found):
                own[name] = found


class SetInLoop:
    """What a loop has set on objects that were there before it."""

    def __init__(
        self, scalars: Callable[[Any], dict[str, Any]], without_variables: tuple[type, ...], descriptions: ValueDescriptions
    ) -> None:
        self._scalars, self._without_variables, self._descriptions = scalars, without_variables, descriptions
        self._before: Constants = {}

    def begin(self, objects: dict[str, Any]) -> None:
        """A training loop is about to be entered."""
        self._before = {key: self._of(value) for key, value in objects.items()}

    def now(self, objects: dict[str, Any]) -> dict[str, Any]:
        """Return what is other than it was then."""
        found = changed({key: self._of(value) for key, value in objects.items() if key in self._before}, self._before)
        return {"objects": found} if found else {}

    @contextlib.contextmanager
    def again(self, state: dict[str, Any], objects: dict[str, Any]) -> Iterator[None]:
        """Set it again for as long as the context lasts."""
        found = {key: parts for key, parts in state.get("objects", {}).items() if key in objects}
        before = {key: self._of(objects[key]) for key in found}
        self._put(found, objects)
        try:
            yield
        finally:
            self._put(before, objects)

    def _of(self, value: Any) -> dict[str, dict[str, Any]]:
        settings = contents(value, self._descriptions) if isinstance(value, self._without_variables) else {}
        return {"attributes": self._scalars(value), "functions": functions_of(value), "settings": settings}

    def _put(self, state: Constants, objects: dict[str, Any]) -> None:
        for key, parts in state.items():
            vars(objects[key]).update(
                {n: v for n, v in parts.get("attributes", {}).items() if n in vars(objects[key]) and n != SEEDS_2}
            )
            set_functions({key: parts.get("functions", {})}, objects)
            set_contents(objects[key], parts.get("settings", {}), self._descriptions)


class LoopFunctions:
    """Functions of the program in attributes of Keras's objects, and vocabularies: what the loop has put there is
    named.
    """

    def __init__(self) -> None:
        self._at_phase: dict[str, dict[str, int]] = {}
        self._tables: dict[str, weakref.ref[Any]] = {}

    def begin(self, objects: dict[str, Any]) -> None:
        """A training loop is about to be entered."""
        self._at_phase = {key: self._found(value) for key, value in objects.items()}
        tables = {key: vars(value).get("lookup_table") for key, value in objects.items()}
        self._tables = {key: weakref.ref(table) for key, table in tables.items() if table is not None}

    def not_captured(self, objects: dict[str, Any]) -> list[str]:
        """Return, in words, what the loop has put there."""
        return [
            f"{name} of {key} (function: set in the loop)"
            for key, before in self._at_phase.items()
            if key in objects and not is_own_class(type(objects[key]))
            for name, identity in self._found(objects[key]).items()
            if before.get(name) != identity
        ] + [
            f"vocabulary of {key} (adapted or set in the loop)"
            for key, table in self._tables.items()
            if key in objects and vars(objects[key]).get("lookup_table") is not table()
        ]

    def _found(self, value: Any) -> dict[str, int]:
        own = list(vars(value).items())
        return {name: id(item) for name, item in own if has_user_code(item) and not is_findable(item)}


NoteChange = Callable[[Any, str, object], None]
"""Is told of an object of Keras's, an attribute of it that has been set, and the value before."""


def watch_sets(note: NoteChange, classes: Iterable[Any]) -> None:
    """Have the numbers, texts and truths noted that are set on objects of these classes."""

    def noting(original: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
        @functools.wraps(original)
        def set_attribute(owner: Any, name: str, value: Any) -> None:
            before = vars(owner).get(name, ABSENT)
            original(owner, name, value)
            is_noted = type(value) in SCALARS or _is_named_function(value)
            if is_noted and name not in _BUILDING and name not in MASKS and before is not value:
                note(owner, name, before)

        return set_attribute

    for cls in classes:
        cls.__setattr__ = noting(cls.__setattr__)


def watch_frozen(note: NoteChange) -> None:
    """Have it noted where a variable of Keras is frozen, or no longer so."""
    import keras

    trainable: Any = keras.Variable.trainable

    def set_trainable(variable: Any, value: Any) -> None:
        note(variable, "_trainable", variable._trainable)
        trainable.fset(variable, value)

    keras.Variable.trainable = property(trainable.fget, set_trainable)


def classes_without_variables(keras: Any) -> tuple[Any, ...]:
    """Return the classes in a module `keras` whose objects have no variables, and settings that are state."""
    return (
        keras.losses.Loss,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
    )


def watch_births(births: Births, classes: tuple[Any, ...]) -> None:
    """Name each object of these classes as it is made; not all of them call the `__init__` of their base."""

    def named(original: Any) -> Any:
        @functools.wraps(original)
        def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(cls) if original is object.__new__ else original(cls, *args, **kwargs)
            births.register(value, cls.__name__, sys._getframe(1))
            return value

        return made

    for cls in classes:
        cls.__new__ = staticmethod(named(cls.__new__))


def contents(value: object, descriptions: ValueDescriptions) -> dict[str, Any]:
    """Return what the lists, dicts and arrays in an object's attributes hold, as JSON can have it."""
    found = {}
    for name, item in [] if is_own_class(type(value)) else list(vars(value).items()):
        if isinstance(item, _HOLDERS):
            with contextlib.suppress(NoDataError):
                found[name] = descriptions.describe(item)
    return found


def set_contents(value: object, state: Mapping[str, Any], descriptions: ValueDescriptions) -> None:
    """Set those of these attributes that are others than they were; a list or dict stays the same object."""
    own, now = vars(value), contents(value, descriptions)
    for name in state.keys() & now.keys():
        if now[name] == state[name]:
            continue
        held, made = own[name], descriptions.recall(state[name])
        if type(held) is type(made) is dict:
            held.clear()
            held.update(made)
        elif type(held) is type(made) is list:
            held[:] = made
        else:
            own[name] = made


def changed(now: Constants, before: Constants) -> Constants:
    """Return what is other than it was, of objects that were there."""
    found: Constants = {}
    for key in now.keys() & before.keys():
        for part, values in now[key].items():
            was = before[key][part]
            other = {name: value for name, value in values.items() if name in was and was[name] != value}
            if other:
                found.setdefault(key, {})[part] = other
    return found


def masks(value: Any) -> dict[str, Any]:
    """Return the masks that a cell keeps: type, shape and bytes of each, lists of them where it keeps one for each
    gate.
    """
    own = vars(value)
    held = {name: own.get(name) for name in MASKS}
    for name in own.keys() & set(_CACHES):
        held[name] = next((kept for graph, kept in own[name].items() if not isinstance(graph, tf.Graph)), None)
    return {name: found for name, kept in held.items() if (found := _described(kept)) is not None}


def kept_masks(births: Births, cell_type: type) -> list[str]:
    """Return, in words, the masks that cells of this type keep."""
    return [f"the dropout masks that {key} keeps" for key, cell in births.living(cell_type) if masks(cell)]


def restore_masks(state: dict[str, Any], objects: dict[str, Any]) -> None:
    """Set them, by the keys of their cells. Raises Diverged where a cell is not there."""
    lost = sorted(state.keys() - objects.keys())
    if lost:
        raise Diverged(
            f"the dropout masks that {lost[0]!r} keeps from call to call cannot be put back: the loop makes it",
            "make and build it before the loop, or call its reset_dropout_mask() in each step, and start anew with --fresh",
        )
    for key, value in objects.items():
        own, kept = vars(value), state.get(key, {})
        own.update(dict.fromkeys(own.keys() & set(MASKS)))
        for name in own.keys() & set(_CACHES):
            own[name].clear()
        for name, described in kept.items():
            if name in _CACHES:
                own[name].setdefault(default=_tensors(described))
            else:
                own[name] = _tensors(described)


def _described(mask: Any) -> list[Any] | None:
    if isinstance(mask, list):
        return [_described(item) for item in mask]
    if not isinstance(mask, EagerTensor):  # of a function's graph, which no other can use
        return None
    return [mask.dtype.name, mask.shape.as_list(), mask.numpy().tobytes().hex()]


def _tensors(described: list[Any]) -> Any:
    if not isinstance(described[0], str):
        return [_tensors(item) for item in described]
    dtype, shape, content = described
    return tf.constant(np.frombuffer(bytes.fromhex(content), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))
