"""What a loop sets on Keras's objects: noted as it is set, and compared with what it was before the loop."""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from detrain.adapters.tensorflow.keras import config_objects
from detrain.adapters.tensorflow.keras.config_objects import Constants, changed
from detrain.adapters.tensorflow.keras.rnn_masks import MASKS
from detrain.adapters.tensorflow.values.json_values import SCALARS, ValueDescriptions
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.names import computes, find_static, is_findable, is_own_class, static_name
from detrain.python.inspect.object_graph import ABSENT

_BUILDING: Final = frozenset({"built", "_called", "_built", "_is_graph_network", "_jit_compile", "_run_eagerly"})
"""Say how far an object is built, or compiled: so in a resumed process when it is."""
SEEDS_2: Final = "_random_generator"
"""What layers of Keras 2 draw by: given a seed, it counts that up with each draw."""


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
        settings = config_objects.contents(value, self._descriptions) if isinstance(value, self._without_variables) else {}
        return {"attributes": self._scalars(value), "functions": functions_of(value), "settings": settings}

    def _put(self, state: Constants, objects: dict[str, Any]) -> None:
        for key, parts in state.items():
            vars(objects[key]).update(
                {n: v for n, v in parts.get("attributes", {}).items() if n in vars(objects[key]) and n != SEEDS_2}
            )
            set_functions({key: parts.get("functions", {})}, objects)
            config_objects.set_contents(objects[key], parts.get("settings", {}), self._descriptions)


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
