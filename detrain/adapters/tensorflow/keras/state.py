"""State of Keras's own objects besides their variables: attributes that a loop sets on them, and Keras's settings.

A program that unfreezes a layer (`layer.trainable = True`, or `model.layers[0].trainable`), lets dropout grow
(`layer.rate += 0.1`) or changes `keras.config` in its loop has state in attributes of the library's objects. Numbers,
texts and booleans among the attributes of layers, optimizers and metrics are captured whole, and functions
(`layer.activation = tf.nn.tanh`) by their names; a resumed process sets those that differ. A function that cannot be
found by a name is reported if the loop has set it. The layers and the optimizer of a model cannot be set: if the loop
has changed these, the resumed run stops.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.keras.loop_changes import (
    SEEDS_2,
    LoopFunctions,
    SetInLoop,
    classes_without_variables,
    contents,
    functions_of,
    kept_masks,
    masks,
    restore_masks,
    scalars,
    set_contents,
    set_functions,
)
from detrain.adapters.tensorflow.values.json_values import ValueDescriptions
from detrain.base.errors import Diverged
from detrain.python.inspect.object_graph import ABSENT

_PARTS: Final = ("_layers", "_optimizer", "optimizer")
"""Attributes that hold the parts of a model."""

_SET_2: Final = ("_trainable", "_clipnorm", "_clipvalue", "_global_clipnorm", "_u_product_counter")
"""Private attributes of Keras 2 that lie behind public ones, and Nadam's counter for steps that are not compiled."""

_CONFIG: Final = frozenset({"floatx", "epsilon", "image_data_format", "max_epochs", "max_steps_per_epoch"})
_SEED: Final = "global_random_seed"
_GENERATOR: Final = "global_seed_generator"


class _ObjectState:
    """The common part of `KerasState` and `Keras2State`: objects of certain classes, and the loop's changes to them."""

    def __init__(
        self,
        births: Births,
        keras: Any,
        types: tuple[type, ...],
        cell_type: type,
        scalars: Callable[[Any], dict[str, Any]],
    ) -> None:
        self._births, self._cell_type, self._scalars = births, cell_type, scalars
        self._without_variables = classes_without_variables(keras)
        self._types = (*types, *self._without_variables)
        self._descriptions = ValueDescriptions(births)
        self._set = SetInLoop(scalars, self._without_variables, self._descriptions)
        self._functions = LoopFunctions()

    def state(self) -> dict[str, Any]:
        """Return the state in a form that JSON can hold."""
        objects = self._objects()
        settings = {key: value for key, value in objects.items() if isinstance(value, self._without_variables)}
        return {
            "attributes": {key: self._scalars(value) for key, value in objects.items()},
            "functions": _found(functions_of, objects),
            "settings": _found(lambda value: contents(value, self._descriptions), settings),
            "masks": _found(masks, objects),
        }

    def _restore_objects(self, state: dict[str, Any], objects: dict[str, Any]) -> None:
        """Restore all of the state except the attributes."""
        set_functions(state.get("functions", {}), objects)
        for key, settings in state.get("settings", {}).items():
            if key in objects:
                set_contents(objects[key], settings, self._descriptions)
        restore_masks(state.get("masks", {}), objects)

    def kept_masks(self) -> list[str]:
        """Return, in words, the dropout masks that cells keep from call to call."""
        return kept_masks(self._births, self._cell_type)

    def begin_phase(self) -> None:
        """Note the objects' state as a training loop is about to be entered."""
        self._set.begin(self._objects())
        self._functions.begin(self._objects())

    def set_in_loop(self) -> dict[str, Any]:
        """Return the changes that the loop has made to earlier objects: a function traced now may read them."""
        return self._set.now(self._objects())

    def as_set(self, state: dict[str, Any]) -> AbstractContextManager[None]:
        """Put such changes in place while a function is traced."""
        return self._set.again(state, self._objects())

    def not_captured(self) -> list[str]:
        """Return, in words, the functions and vocabularies that the loop has put on objects."""
        return self._functions.not_captured(self._objects())

    def _objects(self) -> dict[str, Any]:
        return {key: value for key, value in self._births.alive() if isinstance(value, self._types)}


class KerasState(_ObjectState):
    """The state of Keras 3. `variables` yields (key, variable) of all living variables of Keras."""

    def __init__(self, births: Births, variables: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        import keras
        from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell
        from keras.src.ops.operation import Operation

        super().__init__(births, keras, (Operation, keras.optimizers.Optimizer, keras.metrics.Metric), DropoutRNNCell, scalars)
        self._config = keras.config
        self._variables = variables
        self._generator_type = keras.random.SeedGenerator
        self._at_phase: dict[str, dict[str, list[str]]] = {}
        self._frozen: dict[str, bool] = {}

    def state(self) -> dict[str, Any]:
        """Return the state in a form that JSON can hold."""
        return super().state() | {
            "config": {name: getattr(self._config, name)() for name in _CONFIG},
            "dtype_policy": self._config.dtype_policy().name,
            "names": dict(names_given()),
            "seeds": self._global_seeds(),
            "frozen": sorted(key for key, variable in self._variables() if not variable.trainable),
            "parts": _found(self._parts, self._objects()),
        }

    def restore(self, state: dict[str, Any], again: frozenset[str] = frozenset()) -> None:
        """Restore the state. `again`: keys of parts that were made again, and lack attributes that Keras adds later.

        Raises Diverged if a model has parts that this process lacks.
        """
        config, objects = state["config"], self._objects()
        for name in _CONFIG & config.keys():  # earlier versions of detrain kept fewer settings
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
            now = scalars(objects[key]) if key in objects else {}
            own = vars(objects[key]) if key in objects else {}
            kept = {name: value for name, value in attributes.items() if name in now or key in again}
            own.update({name: value for name, value in kept.items() if name not in now or not _is_same(now[name], value)})
        self._restore_objects(state, objects)
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
        """Return the global seed that the program set last, and the key of the generator for draws without a generator
        of their own.
        """
        return _global(_SEED), self._births.key(_global(_GENERATOR))

    def _set_global_seeds(self, seed: int | None, key: str | None) -> None:
        """Set the global seed and generator. A missing one is made now, which draws a number from Python's stream."""
        generator = None if key is None else self._births.find(key)
        if key is not None and generator is None:
            with self._births.naming(key):
                generator = self._generator_type()
        for name, value in ((_SEED, seed), (_GENERATOR, generator)):
            _set_global(name, value)

    def set_in_loop(self) -> dict[str, Any]:
        """Return the changes that the loop has made to earlier objects: a function traced now may read them."""
        frozen = {key: not variable.trainable for key, variable in self._variables()}
        now = {key: is_frozen for key, is_frozen in frozen.items() if self._frozen.get(key, False) != is_frozen}
        return super().set_in_loop() | ({"frozen": now} if now else {})

    @contextlib.contextmanager
    def as_set(self, state: dict[str, Any]) -> Iterator[None]:
        """Put such changes in place while a function is traced."""
        variables = dict(self._variables())
        frozen = {key: value for key, value in state.get("frozen", {}).items() if key in variables}
        frozen = {key: value for key, value in frozen.items() if variables[key].trainable == value}
        before = {key: not value for key, value in frozen.items()}
        for key, is_frozen in frozen.items():
            variables[key].trainable = not is_frozen
        try:
            with super().as_set(state):
                yield
        finally:
            for key, is_frozen in before.items():
                variables[key].trainable = not is_frozen

    def begin_phase(self) -> None:
        """Note the objects' state and parts as a training loop is about to be entered."""
        super().begin_phase()
        self._frozen = {key: not variable.trainable for key, variable in self._variables()}
        built = {key: value for key, value in self._objects().items() if vars(value).get("built")}
        self._at_phase = {key: self._parts(value) for key, value in built.items()}

    def not_captured(self) -> list[str]:
        """Return, in words, the models whose parts the loop has changed, and the functions it has put on objects."""
        objects = self._objects()
        return [
            f"{name.strip('_')} of {key} (changed in the loop: {_shown(now)})"
            for key, parts in self._at_phase.items()
            if key in objects
            for name, now in self._parts(objects[key]).items()
            if name != "_optimizer" and name in parts and parts[name] != now
        ] + super().not_captured()

    def _parts(self, value: Any) -> dict[str, list[str]]:
        """Return the keys of the registered objects that are a model's parts, by attribute."""
        own, found = vars(value), {}
        for name in _PARTS:
            held = own.get(name)
            items = list(held) if isinstance(held, list | tuple) else [held]
            keys = [self._births.key(item) for item in items]
            if held and None not in keys:
                found[name] = [key for key in keys if key is not None]
        return found


class Keras2State(_ObjectState):
    """The state of Keras 2: numbers, texts and booleans in the public attributes of layers and optimizers."""

    def __init__(self, births: Births) -> None:
        import tf_keras
        from tf_keras.layers import Layer
        from tf_keras.optimizers import Optimizer, legacy
        from tf_keras.src.layers.rnn.dropout_rnn_cell_mixin import DropoutRNNCellMixin

        super().__init__(births, tf_keras, (Layer, Optimizer, legacy.Optimizer), DropoutRNNCellMixin, _settings)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        objects = self._objects()
        self._restore_objects(state, objects)
        attributes = state.get("attributes", state)  # earlier versions of detrain kept attributes only
        for key, value in objects.items():
            now = _settings(value)
            for name, content in attributes.get(key, {}).items():
                if _is_same(now.get(name, ABSENT), content):
                    continue
                if name == SEEDS_2:
                    vars(value)[name]._seed = content
                elif name[0] == "_":  # on this object alone: the property `trainable` sets all layers in it
                    vars(value)[name] = content
                else:
                    setattr(value, name, content)


def _found(look: Callable[[Any], dict[str, Any]], objects: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the non-empty results of `look`, by the objects' keys."""
    return {key: found for key, value in objects.items() if (found := look(value))}


def names_given() -> dict[str, int]:
    """Return how often Keras has given each name (`dense`, then `dense_1`); `keras.backend.get_uid` counts on."""
    if _global("object_name_uids") is None:
        _set_global("object_name_uids", collections.defaultdict(int))
    found: dict[str, int] = _global("object_name_uids")
    return found


def _global(name: str) -> Any:
    """Return Keras's global attribute of this name; None if there is none."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute(name)


def _set_global(name: str, value: object) -> None:
    from keras.src.backend.common import global_state

    global_state.set_global_attribute(name, value)


def _settings(value: Any) -> dict[str, Any]:
    """Return the attributes that a program sets on a Keras 2 object, and the seed of its next draw, if one was given.

    The other private attributes say how far the object is built.
    """
    found = {name: item for name, item in scalars(value).items() if name[0] != "_" or name in _SET_2}
    seed = getattr(vars(value).get(SEEDS_2), "_seed", None)
    return found if seed is None else found | {SEEDS_2: seed}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and (one == other or one != one)  # noqa: PLR0124 - not a number is what it was


def _shown(keys: list[str] | None) -> str:
    return ", ".join(keys) if keys else "none"
