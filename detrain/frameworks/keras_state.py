"""State of Keras's own objects besides their variables: what a loop sets on them, and Keras's settings.

A program that unfreezes a layer (`layer.trainable = True`, or `model.layers[0].trainable`), lets dropout grow (`layer.rate += 0.1`)
or changes `keras.config` in its loop has state in attributes that are the library's. Numbers, texts and truths among the attributes
of layers, optimizers and metrics are captured whole, and functions (`layer.activation = tf.nn.tanh`) by their names; those of a
resumed process that differ are set. A function that no name leads to is named where the loop has set it. Which layers and which
optimizer a model has cannot be set: where the loop has changed that, the run that resumes stops.

A recurrent cell that the program calls itself keeps the masks of its dropout, drawn at the first call, until it is told to drop
them. They are captured; those that building ahead has left are no tensors that anything could use.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.errors import Diverged
from detrain.frameworks import keras_settings
from detrain.frameworks.births import Births
from detrain.frameworks.keras_settings import SCALARS, Constants, changed
from detrain.runtime.frames import has_user_code
from detrain.runtime.graph import ABSENT
from detrain.runtime.naming import computes, find_static, is_findable, is_own_class, static_name

_BUILDING: Final = frozenset({"built", "_called", "_built", "_is_graph_network", "_jit_compile", "_run_eagerly"})
"""Say how far an object is built, or compiled: so in a resumed process when it is."""
_PARTS: Final = ("_layers", "_optimizer", "optimizer")
"""Attributes that say what a model consists of."""

_SET_2: Final = ("_trainable", "_clipnorm", "_clipvalue", "_global_clipnorm", "_u_product_counter")
"""Private attributes of Keras 2 that lie behind public ones, and what Nadam counts where its steps are not compiled."""

_SEEDS_2: Final = "_random_generator"
"""What layers of Keras 2 draw by: given a seed, it counts that up with each draw."""

_CONFIG: Final = frozenset({"floatx", "epsilon", "image_data_format", "max_epochs", "max_steps_per_epoch"})
_SEED: Final = "global_random_seed"
_GENERATOR: Final = "global_seed_generator"
_MASKS: Final = ("_dropout_mask", "_recurrent_dropout_mask")
_CACHES: Final = ("_dropout_mask_cache", "_recurrent_dropout_mask_cache")
"""Where cells of Keras 2 keep them, by the graph; those of no graph under an object that is none."""


class KerasState:
    """Reads and sets the state. `trainable_variables` yields (key, variable) of all of Keras's variables alive."""

    def __init__(self, births: Births, variables: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        import keras
        from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell
        from keras.src.ops.operation import Operation

        self._config = keras.config
        self._births = births
        self._variables = variables
        self._cell_type = DropoutRNNCell
        self._generator_type = keras.random.SeedGenerator
        self._without_variables = keras_settings.classes_of(keras)
        self._types = (Operation, keras.optimizers.Optimizer, keras.metrics.Metric, *self._without_variables)
        self._at_phase: dict[str, dict[str, list[str]]] = {}
        self._frozen: dict[str, bool] = {}
        self._set = SetInLoop(_scalars, self._without_variables)
        self._functions = Functions()

    def state(self) -> dict[str, Any]:
        """Return the state, as JSON can have it."""
        objects = self._objects()
        return {
            "config": {name: getattr(self._config, name)() for name in _CONFIG},
            "dtype_policy": self._config.dtype_policy().name,
            "names": dict(names_given()),
            "seeds": self._global_seeds(),
            "attributes": {key: _scalars(value) for key, value in objects.items()},
            "functions": {key: functions for key, value in objects.items() if (functions := functions_of(value))},
            "settings": _contents(objects, self._without_variables),
            "masks": {key: found for key, value in objects.items() if (found := _masks(value))},
            "frozen": sorted(key for key, variable in self._variables() if not variable.trainable),
            "parts": {key: found for key, value in objects.items() if (found := self._parts(value))},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state. Raises Diverged where a model consists of what this process does not have."""
        config, objects = state["config"], self._objects()
        for name in _CONFIG & config.keys():  # earlier versions kept less
            if getattr(self._config, name)() != config[name]:
                getattr(self._config, f"set_{name}")(config[name])
        policy = state["dtype_policy"] if "dtype_policy" in state else config["dtype_policy"]
        if self._config.dtype_policy().name != policy:
            self._config.set_dtype_policy(policy)
        if "names" in state:
            names = names_given()
            names.clear()
            names.update(state["names"])
        if "seeds" in state:
            self._set_global_seeds(*state["seeds"])
        for key, attributes in state["attributes"].items():
            now = _scalars(objects[key]) if key in objects else {}
            own = vars(objects[key]) if key in objects else {}
            own.update({name: value for name, value in attributes.items() if name in now and not _is_same(now[name], value)})
        set_functions(state.get("functions", {}), objects)
        for key, settings in state.get("settings", {}).items():
            if key in objects:
                keras_settings.set_contents(objects[key], settings)
        _restore_masks(state.get("masks", {}), objects)
        frozen = set(state["frozen"])
        for key, variable in self._variables():
            if variable.trainable == (key in frozen):
                variable.trainable = key not in frozen
        for key, parts in state["parts"].items():
            mine = self._parts(objects[key]) if key in objects else parts
            for name, content in parts.items():
                missing = [part for part in content if part not in objects and part not in mine.get(name, ())]
                if mine.get(name) != content and (missing or name == "_layers"):
                    what = name.strip("_")
                    raise Diverged(
                        f"the {what} of {key!r} was {_shown(content)} at the checkpoint, it is {_shown(mine.get(name))}",
                        "the loop has changed what the model consists of: add layers, and compile, before the loop",
                    )

    def _global_seeds(self) -> tuple[int | None, str | None]:
        """Return the seed that the program has set last, and the key of the generator behind draws without one of their own."""
        return _global(_SEED), self._births.key(_global(_GENERATOR))

    def _set_global_seeds(self, seed: int | None, key: str | None) -> None:
        """Make the generator that the first draw in the loop has made: to make it draws a number of Python's."""
        generator = None if key is None else self._births.find(key)
        if key is not None and generator is None:
            with self._births.naming(key):
                generator = self._generator_type()
        for name, value in ((_SEED, seed), (_GENERATOR, generator)):
            _set_global(name, value)

    def set_in_loop(self) -> dict[str, Any]:
        """Return what the loop has set on objects that were there before it: a function that is traced now may read it."""
        frozen = {key: not variable.trainable for key, variable in self._variables()}
        now = {key: is_frozen for key, is_frozen in frozen.items() if self._frozen.get(key, False) != is_frozen}
        return self._set.now(self._objects()) | ({"frozen": now} if now else {})

    @contextlib.contextmanager
    def as_set(self, state: dict[str, Any]) -> Iterator[None]:
        """Have that set for as long as a function is traced."""
        variables = dict(self._variables())
        frozen = {key: value for key, value in state.get("frozen", {}).items() if key in variables}
        frozen = {key: value for key, value in frozen.items() if variables[key].trainable == value}
        before = {key: not value for key, value in frozen.items()}
        for key, is_frozen in frozen.items():
            variables[key].trainable = not is_frozen
        try:
            with self._set.again(state, self._objects()):
                yield
        finally:
            for key, is_frozen in before.items():
                variables[key].trainable = not is_frozen

    def kept_masks(self) -> list[str]:
        """Return, in words, the masks of dropout that cells keep from call to call."""
        return _kept_masks(self._births, self._cell_type)

    def begin_phase(self) -> None:
        """A training loop is about to be entered."""
        self._frozen = {key: not variable.trainable for key, variable in self._variables()}
        self._set.begin(self._objects())
        built = {key: value for key, value in self._objects().items() if vars(value).get("built")}
        self._at_phase = {key: self._parts(value) for key, value in built.items()}
        self._functions.begin(self._objects())

    def not_captured(self) -> list[str]:
        """Return which models consist of other things than when the loop was entered."""
        objects = self._objects()
        return [
            f"{name.strip('_')} of {key} (changed in the loop: {_shown(now)})"
            for key, parts in self._at_phase.items()
            if key in objects
            for name, now in self._parts(objects[key]).items()
            if name != "_optimizer" and name in parts and parts[name] != now
        ] + self._functions.not_captured(objects)

    def _objects(self) -> dict[str, Any]:
        return {key: value for key, value in self._births.alive() if isinstance(value, self._types)}

    def _parts(self, value: Any) -> dict[str, list[str]]:
        """Return the keys of the registered objects that a model consists of."""
        own, found = vars(value), {}
        for name in _PARTS:
            held = own.get(name)
            items = list(held) if isinstance(held, list | tuple) else [held]
            keys = [self._births.key(item) for item in items]
            if held and None not in keys:
                found[name] = [key for key in keys if key is not None]
        return found


class Keras2State:
    """Reads and sets the numbers, texts and truths among the public attributes of layers and optimizers of Keras 2."""

    def __init__(self, births: Births) -> None:
        import tf_keras
        from tf_keras.layers import Layer
        from tf_keras.optimizers import Optimizer, legacy
        from tf_keras.src.layers.rnn.dropout_rnn_cell_mixin import DropoutRNNCellMixin

        self._births = births
        self._cell_type = DropoutRNNCellMixin
        self._without_variables = keras_settings.classes_of(tf_keras)
        self._types = (Layer, Optimizer, legacy.Optimizer, *self._without_variables)
        self._set = SetInLoop(_settings, self._without_variables)
        self._functions = Functions()

    def state(self) -> dict[str, Any]:
        """Return the state, as JSON can have it."""
        objects = self._objects()
        return {
            "attributes": {key: _settings(value) for key, value in objects.items()},
            "functions": {key: functions for key, value in objects.items() if (functions := functions_of(value))},
            "settings": _contents(objects, self._without_variables),
            "masks": {key: found for key, value in objects.items() if (found := _masks(value))},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state."""
        objects = self._objects()
        set_functions(state.get("functions", {}), objects)
        for key, settings in state.get("settings", {}).items():
            if key in objects:
                keras_settings.set_contents(objects[key], settings)
        _restore_masks(state.get("masks", {}), objects)
        attributes = state.get("attributes", state)  # earlier versions kept nothing else
        for key, value in objects.items():
            now = _settings(value)
            for name, content in attributes.get(key, {}).items():
                if _is_same(now.get(name, ABSENT), content):
                    continue
                if name == _SEEDS_2:
                    vars(value)[name]._seed = content
                elif name[0] == "_":  # of this object alone: to set the property `trainable` sets it of all layers in it
                    vars(value)[name] = content
                else:
                    setattr(value, name, content)

    def kept_masks(self) -> list[str]:
        """Return, in words, the masks of dropout that cells keep from call to call."""
        return _kept_masks(self._births, self._cell_type)

    def begin_phase(self) -> None:
        """A training loop is about to be entered."""
        self._set.begin(self._objects())
        self._functions.begin(self._objects())

    def set_in_loop(self) -> dict[str, Any]:
        """Return what the loop has set on objects that were there before it: a function that is traced now may read it."""
        return self._set.now(self._objects())

    def as_set(self, state: dict[str, Any]) -> AbstractContextManager[None]:
        """Have that set for as long as a function is traced."""
        return self._set.again(state, self._objects())

    def not_captured(self) -> list[str]:
        """Return which functions the loop has put on objects."""
        return self._functions.not_captured(self._objects())

    def _objects(self) -> dict[str, Any]:
        return {key: value for key, value in self._births.alive() if isinstance(value, self._types)}


def _contents(objects: dict[str, Any], types: tuple[type, ...]) -> dict[str, Any]:
    settings = {key: keras_settings.contents(value) for key, value in objects.items() if isinstance(value, types)}
    return {key: found for key, found in settings.items() if found}


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

    def __init__(self, scalars: Callable[[Any], dict[str, Any]], without_variables: tuple[type, ...]) -> None:
        self._scalars, self._without_variables = scalars, without_variables
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
        settings = keras_settings.contents(value) if isinstance(value, self._without_variables) else {}
        return {"attributes": self._scalars(value), "functions": functions_of(value), "settings": settings}

    def _put(self, state: Constants, objects: dict[str, Any]) -> None:
        for key, parts in state.items():
            vars(objects[key]).update(
                {n: v for n, v in parts.get("attributes", {}).items() if n in vars(objects[key]) and n != _SEEDS_2}
            )
            set_functions({key: parts.get("functions", {})}, objects)
            keras_settings.set_contents(objects[key], parts.get("settings", {}))


class Functions:
    """Functions of the program in attributes of Keras's objects that no name leads to: what the loop has put there is named."""

    def __init__(self) -> None:
        self._at_phase: dict[str, dict[str, int]] = {}

    def begin(self, objects: dict[str, Any]) -> None:
        """A training loop is about to be entered."""
        self._at_phase = {key: self._found(value) for key, value in objects.items()}

    def not_captured(self, objects: dict[str, Any]) -> list[str]:
        """Return, in words, what the loop has put there."""
        return [
            f"{name} of {key} (function: set in the loop)"
            for key, before in self._at_phase.items()
            if key in objects and not is_own_class(type(objects[key]))
            for name, identity in self._found(objects[key]).items()
            if before.get(name) != identity
        ]

    def _found(self, value: Any) -> dict[str, int]:
        own = list(vars(value).items())
        return {name: id(item) for name, item in own if has_user_code(item) and not is_findable(item)}


Note = Callable[[Any, str, object], None]
"""Is told of an object of Keras's, an attribute of it that has been set, and the value before."""


def watch_sets(note: Note, classes: Iterable[Any]) -> None:
    """Have the numbers, texts and truths noted that are set on objects of these classes."""

    def noting(original: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
        @functools.wraps(original)
        def set_attribute(owner: Any, name: str, value: Any) -> None:
            before = vars(owner).get(name, ABSENT)
            original(owner, name, value)
            is_noted = type(value) in SCALARS or _is_named_function(value)
            if is_noted and name not in _BUILDING and name not in _MASKS and before is not value:
                note(owner, name, before)

        return set_attribute

    for cls in classes:
        cls.__setattr__ = noting(cls.__setattr__)


def watch_frozen(note: Note) -> None:
    """Have it noted where a variable of Keras is frozen, or no longer so."""
    import keras

    trainable: Any = keras.Variable.trainable

    def set_trainable(variable: Any, value: Any) -> None:
        note(variable, "_trainable", variable._trainable)
        trainable.fset(variable, value)

    keras.Variable.trainable = property(trainable.fget, set_trainable)


def names_given() -> dict[str, int]:
    """Return how often Keras has given each name (`dense`, then `dense_1`); `keras.backend.get_uid` counts on."""
    if _global("object_name_uids") is None:
        _set_global("object_name_uids", collections.defaultdict(int))
    found: dict[str, int] = _global("object_name_uids")
    return found


def _global(name: str) -> Any:
    """Return what Keras keeps for all, under this name; None if nothing."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute(name)


def _set_global(name: str, value: object) -> None:
    from keras.src.backend.common import global_state

    global_state.set_global_attribute(name, value)


def _scalars(value: Any) -> dict[str, Any]:
    return {name: item for name, item in list(vars(value).items()) if type(item) in SCALARS and name not in _BUILDING}


def _settings(value: Any) -> dict[str, Any]:
    """Return what a program sets on an object of Keras 2, and the seed that it draws with next, if it was given one.

    What else is private says how far it is built.
    """
    found = {name: item for name, item in _scalars(value).items() if name[0] != "_" or name in _SET_2}
    seed = getattr(vars(value).get(_SEEDS_2), "_seed", None)
    return found if seed is None else found | {_SEEDS_2: seed}


def _masks(value: Any) -> dict[str, Any]:
    """Return the masks that a cell keeps: type, shape and bytes of each, lists of them where it keeps one for each gate."""
    own = vars(value)
    held = {name: own.get(name) for name in _MASKS}
    for name in own.keys() & set(_CACHES):
        held[name] = next((masks for graph, masks in own[name].items() if not isinstance(graph, tf.Graph)), None)
    return {name: found for name, masks in held.items() if (found := _described(masks)) is not None}


def _kept_masks(births: Births, cell_type: type) -> list[str]:
    return [f"the dropout masks that {key} keeps" for key, cell in births.living(cell_type) if _masks(cell)]


def _restore_masks(masks: dict[str, Any], objects: dict[str, Any]) -> None:
    lost = sorted(masks.keys() - objects.keys())
    if lost:
        raise Diverged(
            f"the dropout masks that {lost[0]!r} keeps from call to call cannot be put back: the loop makes it",
            "make and build it before the loop, or call its reset_dropout_mask() in each step, and start anew with --fresh",
        )
    for key, value in objects.items():
        own, kept = vars(value), masks.get(key, {})
        own.update(dict.fromkeys(own.keys() & set(_MASKS)))
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


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and (one == other or one != one)  # noqa: PLR0124 - not a number is what it was


def _shown(keys: list[str] | None) -> str:
    return ", ".join(keys) if keys else "none"
