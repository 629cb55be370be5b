"""The places of variables in the weights file that Keras would write of a model, so that a checkpoint can be exported
without Keras.

Keras names the places on a walk from the model through attributes and containers; each object on the walk says which
variables it stores (`keras/src/saving/saving_lib.py` of 3.15, `_save_state`). The walk here follows Keras's, but runs
no code of the program, since that could change the program's state: where Keras would run such code, the model is
refused, and the refusal names it.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from tensorflow.python.distribute.values import MirroredVariable

from detrain.adapters.stable_names import Births
from detrain.store.snapshot import WeightsFile, WeightsGroup

_KINDS: Final = ("Operation", "Layer", "Functional", "Sequential", "Metric", "Loss")
"""Keras's names for the kinds of objects whose attributes it walks. The attributes of optimizers are listed here
without making an object."""
_CONTAINERS: Final = (list, dict, tuple)
_METHODS: Final = (types.FunctionType, classmethod, staticmethod)
_LIBRARIES: Final = ("keras", "tensorflow", "builtins")
_ASKED: Final = ("__dir__", "__getattribute__", "_obj_type", "name", "save_own_variables")
"""The methods and names that the walk uses of an object, besides its attributes."""
_OWN: Final = frozenset({"_trainable_variables", "_non_trainable_variables", "_layers", "_operations"})
"""Attributes that Keras skips on its walk, but that methods it calls read."""
_DEEPEST: Final = 16
_CONTENT: Final = "content"


class KerasWeights:
    """The weights files of living models, kept in memory until a model or variable is made, or an object's attributes
    or its containers' content change.

    It must be made before Keras's classes are watched: Keras makes an object of each kind to learn its attributes.
    """

    def __init__(self, births: Births, variable_key: Callable[[Any], str | None]) -> None:
        import keras
        from keras.src.saving.keras_saveable import KerasSaveable

        self._births, self._variable_key = births, lambda value: variable_key(_first_replica(value))
        self._types = _Types(keras.Model, keras.Sequential, keras.optimizers.Optimizer, KerasSaveable)
        self._skipped = _skipped() | {"Optimizer": frozenset(dir(keras.optimizers.Optimizer)) - {"variables"}}
        self._passed = {kind: names - _OWN for kind, names in self._skipped.items()}
        self._counts = _Counted((KerasSaveable, keras.Variable))
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._made = 0
        self._walked: list[_Walked] = []
        self._shape: list[object] = []
        self._files: dict[str, WeightsFile] = {}

    def on_object(self, made: Any) -> None:
        """Note that a layer, model or other operation was made."""
        self._made += 1
        if isinstance(made, self._types.model):
            self._models.add(made)

    def on_variable(self) -> None:
        """Note that a variable was made."""
        self._made += 1

    def files(self) -> dict[str, WeightsFile]:
        """Return the weights file of each living model, by the model's key."""
        models = self._alive()
        shape = self._shape_of(models)
        if shape != self._shape:
            walked: dict[int, Any] = {}
            self._files = {key: self._file(model, walked) for key, model in models.items()}
            self._walked = [_Walked(saveable, self._counts, self._passed) for saveable in walked.values()]
            self._shape = self._shape_of(models)
        return self._files

    def _alive(self) -> dict[str, Any]:
        """Return the models by key, in the keys' order, without the model that a Sequential makes for itself."""
        models = list(self._models)
        inner = {id(vars(model).get("_functional")) for model in models if isinstance(model, self._types.sequential)}
        found = {key: model for model in models if id(model) not in inner and (key := self._births.key(model))}
        return dict(sorted(found.items()))

    def _file(self, model: Any, walked: dict[int, Any]) -> WeightsFile:
        name = str(vars(model).get("name") or type(model).__name__)
        if not vars(model).get("built"):
            return WeightsFile(name)
        walk = _ModelWalk(self._types, self._skipped, self._variable_key)
        try:
            walk.save(model, "")
        except _Refused as reason:
            return WeightsFile(name, refused=str(reason))
        except Exception as error:  # an edge: Keras's own code is run, for every kind of layer
            return WeightsFile(name, refused=f"Keras says of it: {type(error).__name__}: {str(error)[:200]}")
        finally:
            walked.update(walk.visited)
        return WeightsFile(name, tuple(walk.groups.values()))

    def _shape_of(self, models: dict[str, Any]) -> list[object]:
        """Return the facts that the files depend on: which objects hold which others in which attributes, by id."""
        shape: list[object] = [self._made]
        for key, model in models.items():
            shape += (key, id(model), bool(vars(model).get("built")))
        for walked in self._walked:
            saveable = walked.reference()
            if saveable is None:
                return []
            own = vars(saveable)
            for name, kind in walked.attributes(own):
                value = own.get(name)
                shape += (name, id(value))
                if kind is _CONTENT and value:
                    self._note(value, shape, 0)
        return shape

    def _note(self, container: Any, shape: list[object], depth: int) -> None:
        for item in list(container.values() if isinstance(container, dict) else container):
            if counts := self._counts[type(item)]:
                shape.append(id(item) if depth < _DEEPEST else object())
                if counts is _CONTENT and depth < _DEEPEST:
                    self._note(item, shape, depth + 1)


class _Types:
    """The classes of Keras that the walk knows."""

    def __init__(self, model: type[Any], sequential: type[Any], optimizer: type[Any], saveable: type[Any]) -> None:
        self.model, self.sequential, self.optimizer, self.saveable = model, sequential, optimizer, saveable


class _Counted(dict[type, str]):
    """For each type, the part of its values that counts for the shape: nothing, the object itself, or also its content.

    This is faster than `isinstance`.
    """

    def __init__(self, kinds: tuple[type, ...]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, kind: type) -> str:
        self[kind] = _CONTENT if issubclass(kind, _CONTAINERS) else "itself" if issubclass(kind, self._kinds) else ""
        return self[kind]


class _Walked:
    """An object that the walk came to.

    Its attributes that count are looked up again only if names or types of values have changed.
    """

    __slots__ = ("_attributes", "_counts", "_names", "_passed", "_types", "reference")

    def __init__(self, saveable: Any, counts: _Counted, passed: dict[str, frozenset[str]]) -> None:
        self.reference = weakref.ref(saveable)
        self._counts, self._passed = counts, passed.get(saveable._obj_type(), frozenset())
        self._names: list[str] = []
        self._types: list[type] = []
        self._attributes: list[tuple[str, str]] = []

    def attributes(self, own: dict[str, Any]) -> list[tuple[str, str]]:
        """Return (name, "itself" or "content") of each attribute that counts."""
        names, types_now = list(own), list(map(type, own.values()))
        if types_now != self._types or names != self._names:
            self._names, self._types = names, types_now
            kinds = ((name, self._counts[kind]) for name, kind in zip(names, types_now, strict=False))
            self._attributes = [(name, kind) for name, kind in kinds if kind and name not in self._passed]
        return self._attributes


class _Refused(Exception):
    """The model has content that only its own code could save."""


class _ModelWalk:
    """One walk from a model: `groups` by path, and the objects that it came to."""

    def __init__(self, kinds: _Types, skipped: dict[str, frozenset[str]], variable_key: Callable[[Any], str | None]) -> None:
        self._types, self._skipped, self._variable_key = kinds, skipped, variable_key
        self.groups: dict[str, WeightsGroup] = {}
        self.visited: dict[int, Any] = {}

    def save(self, saveable: Any, path: str) -> None:
        """Walk an object as Keras's `_save_state` does."""
        if id(saveable) in self.visited:
            return
        children = list(self._children(saveable))  # first, to find out whether code of the program would run
        self.visited[id(saveable)] = saveable
        if hasattr(saveable, "save_own_variables"):
            self._save_own(saveable, path)
        for name, child in children:
            inner = f"{path}/{name}" if path else name
            if isinstance(child, self._types.saveable):
                self.save(child, inner)
            elif isinstance(child, _CONTAINERS):
                self._save_container(child, inner, set())

    def _save_container(self, container: Any, path: str, visited: set[int]) -> None:
        """Walk a container as Keras's `_save_container_state` does."""
        from keras.src.utils.naming import to_snake_case

        if id(container) in visited:
            return
        visited.add(id(container))
        used: dict[str, int] = {}
        for item in list(container.values() if isinstance(container, dict) else container):
            if isinstance(item, self._types.saveable):
                self.save(item, f"{path}/{_unique(to_snake_case(type(item).__name__), used)}")
            elif isinstance(item, _CONTAINERS):
                self._save_container(item, f"{path}/{_unique('container', used)}", visited)

    def _save_own(self, saveable: Any, path: str) -> None:
        """Note the variables that an object stores, as the method of Keras's own class stores them."""
        stored: dict[str, Any] = {}
        if isinstance(saveable, self._types.optimizer):  # it stores values, in this order
            stored = {str(number): variable for number, variable in enumerate(saveable.variables)}
        else:
            saveable.save_own_variables(stored)
        keys = [self._variable_key(variable) for variable in stored.values()]
        if None in keys or list(stored) != [str(number) for number in range(len(keys))]:
            raise _Refused(f"{_shown(saveable)} stores what is not a variable of the checkpoint")
        name = saveable.name if isinstance(getattr(saveable, "name", None), str) else None
        if path in self.groups or "vars" in path.split("/"):
            raise _Refused(f"Keras's file has no place for {_shown(saveable)} at {path!r}")
        if name or keys:
            self.groups[path] = WeightsGroup(path, name, tuple(key for key in keys if key is not None))

    def _children(self, saveable: Any) -> Iterator[tuple[str, Any]]:
        """Yield the same attributes as Keras's `_walk_saveable`, in its order."""
        for name in _ASKED:
            cls, _found = _static(saveable, name)
            is_replaced = name in vars(saveable) and name != "name"
            if is_replaced or not (cls is None or _is_of_library(cls)):
                raise _Refused(f"{_shown(saveable)} has its own {name!r}, which is not run at a checkpoint")
        kind = saveable._obj_type()
        if kind not in self._skipped:
            raise _Refused(f"{_shown(saveable)} is of a kind, {kind!r}, whose state is not known")
        if kind in ("Sequential", "Functional"):
            yield "layers", _attribute(saveable, "layers")
        for name in sorted(dir(saveable), key=lambda name: f"~{name}" if name.startswith("_") else name):
            if not name.startswith("__") and name not in self._skipped[kind]:
                yield name, _attribute(saveable, name)


def _attribute(saveable: Any, name: str) -> Any:
    """Return an attribute as `getattr` does; None for a method, or if there is no value.

    Raises _Refused for a property of the program.
    """
    cls, found = _static(saveable, name)
    kind = type(found)
    own = vars(saveable)
    if name in own and not hasattr(kind, "__set__"):
        return own[name]
    if cls is None or isinstance(found, _METHODS):
        return None
    if not hasattr(kind, "__get__"):
        return found
    if callable(found):  # a method under a decorator: `tf.function`, say, makes another function at each access
        return None
    if not _is_of_library(cls):
        raise _Refused(f"{_shown(saveable)} has a property {name!r}, which Keras reads and which is not run at a checkpoint")
    try:
        return getattr(saveable, name)
    except Exception:  # as in Keras: a property may have no value yet
        return None


def _static(saveable: Any, name: str) -> tuple[type[Any] | None, Any]:
    """Return the class that has an attribute of this name, and the attribute's value there."""
    for cls in type(saveable).__mro__:
        if name in vars(cls):
            return cls, vars(cls)[name]
    return None, None


def _is_of_library(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] in _LIBRARIES


def _first_replica(value: Any) -> Any:
    """Return the first replica's variable of a mirrored one, whose value Keras stores; other values as they are."""
    inner = getattr(value, "_value", None)
    return inner._primary if isinstance(inner, MirroredVariable) else value


def _unique(name: str, used: dict[str, int]) -> str:
    used[name] = used.get(name, -1) + 1
    return f"{name}_{used[name]}" if used[name] else name


def _shown(saveable: Any) -> str:
    return f"{type(saveable).__name__} {vars(saveable).get('name') or ''!r}"


def _skipped() -> dict[str, frozenset[str]]:
    """Return the attributes that Keras skips, by kind of object.

    Keras makes objects to find these; the changes of its global state are taken back.
    """
    from keras.src.backend.common import global_state
    from keras.src.saving.saving_lib import get_attr_skipset

    state = vars(global_state.GLOBAL_STATE_TRACKER)
    before = {name: copy.copy(value) if name == "object_name_uids" else value for name, value in state.items()}
    try:
        return {kind: frozenset(get_attr_skipset(kind)) for kind in _KINDS}
    finally:
        state.clear()
        state.update(before)
