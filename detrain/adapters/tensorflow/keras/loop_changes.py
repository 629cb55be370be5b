"""Changes that a loop makes to Keras's objects: noted as they happen, and compared with the values before the loop.

Losses, schedules, regularizers and constraints of Keras's own classes have no variables. Any attribute that a loop sets
on them is state, in whatever way it is set: `setattr(loss, name, value)`, or `loss._fn_kwargs["delta"] = 0.5`, which no
look at the program's source shows. Numbers, texts, booleans and functions are captured as on layers; lists, dicts and
arrays by their content. In objects of the program's classes, the walk over Python's state finds such values.

Recurrent cells that a program calls itself keep dropout masks from call to call: they draw them at the first call, and
keep them until told to drop them. These masks are captured; masks left by building ahead are no tensors that anything
could use.
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
"""Attributes that say how far an object is built or compiled: a resumed process sets them when it builds the object."""
SEEDS_2: Final = "_random_generator"
"""The attribute with the generator of a Keras 2 layer: if it was given a seed, it counts that up with each draw."""

Constants = dict[str, dict[str, dict[str, Any]]]
"""The state of objects by key: parts of it (`attributes`, `functions`, `settings`), each by name."""
_HOLDERS: Final = (list, tuple, dict, *ARRAYS)
MASKS: Final = ("_dropout_mask", "_recurrent_dropout_mask")
_CACHES: Final = ("_dropout_mask_cache", "_recurrent_dropout_mask_cache")
"""Attributes where cells of Keras 2 keep masks, by the graph; those of no graph under a key that is no graph."""


def scalars(value: Any) -> dict[str, Any]:
    """Return the numbers, texts and booleans in an object's attributes."""
    return {name: item for name, item in list(vars(value).items()) if type(item) in SCALARS and name not in _BUILDING}


def _is_named_function(value: Any) -> bool:
    """Return whether a value is a function found by its name: the program's, or a library's that only computes."""
    return computes(value) or (isinstance(value, types.FunctionType) and is_findable(value))


def functions_of(value: Any) -> dict[str, str]:
    """Return, by attribute, the names of the functions in an object's attributes that can be found by name."""
    return {name: static_name(item) for name, item in list(vars(value).items()) if _is_named_function(item)}


def set_functions(state: dict[str, dict[str, str]], objects: dict[str, Any]) -> None:
    """Set the functions in attributes that differ from those at the checkpoint."""
    for key in state.keys() & objects.keys():
        own, now = vars(objects[key]), functions_of(objects[key])
        for name, function in state[key].items():
            found = find_static(function) if name in own and now.get(name) != function else ABSENT
            if _is_named_function(found):
                own[name] = found


class SetInLoop:
    """The changes that a loop has made to objects that existed before it."""

    def __init__(
        self, scalars: Callable[[Any], dict[str, Any]], without_variables: tuple[type, ...], descriptions: ValueDescriptions
    ) -> None:
        self._scalars, self._without_variables, self._descriptions = scalars, without_variables, descriptions
        self._before: Constants = {}

    def begin(self, objects: dict[str, Any]) -> None:
        """Note the objects' state as a training loop is about to be entered."""
        self._before = {key: self._of(value) for key, value in objects.items()}

    def now(self, objects: dict[str, Any]) -> dict[str, Any]:
        """Return the values that differ from those at `begin`."""
        found = changed({key: self._of(value) for key, value in objects.items() if key in self._before}, self._before)
        return {"objects": found} if found else {}

    @contextlib.contextmanager
    def again(self, state: dict[str, Any], objects: dict[str, Any]) -> Iterator[None]:
        """Set these changed values again while the context lasts."""
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
    """The program's functions in attributes of Keras's objects, and vocabularies: those that the loop has set
    are named.
    """

    def __init__(self) -> None:
        self._at_phase: dict[str, dict[str, int]] = {}
        self._tables: dict[str, weakref.ref[Any]] = {}

    def begin(self, objects: dict[str, Any]) -> None:
        """Note the functions and vocabularies as a training loop is about to be entered."""
        self._at_phase = {key: self._found(value) for key, value in objects.items()}
        tables = {key: vars(value).get("lookup_table") for key, value in objects.items()}
        self._tables = {key: weakref.ref(table) for key, table in tables.items() if table is not None}

    def not_captured(self, objects: dict[str, Any]) -> list[str]:
        """Return, in words, the functions and vocabularies that the loop has put there."""
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
"""A function that takes an object of Keras, the name of an attribute that has been set on it, and the value before."""


def watch_sets(note: NoteChange, classes: Iterable[Any]) -> None:
    """Have the numbers, texts, booleans and named functions noted that are set on objects of these classes."""

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
    """Have it noted when a variable of Keras is frozen or unfrozen."""
    import keras

    trainable: Any = keras.Variable.trainable

    def set_trainable(variable: Any, value: Any) -> None:
        note(variable, "_trainable", variable._trainable)
        trainable.fset(variable, value)

    keras.Variable.trainable = property(trainable.fget, set_trainable)


def classes_without_variables(keras: Any) -> tuple[Any, ...]:
    """Return the classes of a module `keras` whose objects have no variables, but settings that are state."""
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
    """Return the content of lists, dicts and arrays in an object's attributes, in a form that JSON can hold."""
    found = {}
    for name, item in [] if is_own_class(type(value)) else list(vars(value).items()):
        if isinstance(item, _HOLDERS):
            with contextlib.suppress(NoDataError):
                found[name] = descriptions.describe(item)
    return found


def set_contents(value: object, state: Mapping[str, Any], descriptions: ValueDescriptions) -> None:
    """Set those of these attributes whose content differs; a list or dict stays the same object."""
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
    """Return the values that differ, of objects and names that existed before."""
    found: Constants = {}
    for key in now.keys() & before.keys():
        for part, values in now[key].items():
            was = before[key][part]
            other = {name: value for name, value in values.items() if name in was and was[name] != value}
            if other:
                found.setdefault(key, {})[part] = other
    return found


def masks(value: Any) -> dict[str, Any]:
    """Return the dtype, shape and bytes of each mask that a cell keeps; lists of them if it keeps one for each gate."""
    own = vars(value)
    held = {name: own.get(name) for name in MASKS}
    for name in own.keys() & set(_CACHES):
        held[name] = next((kept for graph, kept in own[name].items() if not isinstance(graph, tf.Graph)), None)
    return {name: found for name, kept in held.items() if (found := _described(kept)) is not None}


def kept_masks(births: Births, cell_type: type) -> list[str]:
    """Return, in words, the masks that cells of this type keep."""
    return [f"the dropout masks that {key} keeps" for key, cell in births.living(cell_type) if masks(cell)]


def restore_masks(state: dict[str, Any], objects: dict[str, Any]) -> None:
    """Set the masks, by the keys of their cells. Raises Diverged if a cell does not exist."""
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
    if not isinstance(mask, EagerTensor):  # a mask of a function's graph, which no other graph can use
        return None
    return [mask.dtype.name, mask.shape.as_list(), mask.numpy().tobytes().hex()]


def _tensors(described: list[Any]) -> Any:
    if not isinstance(described[0], str):
        return [_tensors(item) for item in described]
    dtype, shape, content = described
    return tf.constant(np.frombuffer(bytes.fromhex(content), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))
