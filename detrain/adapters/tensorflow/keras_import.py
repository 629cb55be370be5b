"""The hooks set when the program imports Keras 3 or Keras 2: from then on Keras's objects are named, and their state is
kept.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.faults.instruments import TensorFlowInstruments
from detrain.adapters.tensorflow.guard.norms import TensorFlowNorms
from detrain.adapters.tensorflow.keras.fit import FitInstrument
from detrain.adapters.tensorflow.keras.loop_changes import classes_without_variables, watch_births, watch_frozen, watch_sets
from detrain.adapters.tensorflow.keras.loop_models import LoopModels
from detrain.adapters.tensorflow.keras.state import Keras2State, KerasState
from detrain.adapters.tensorflow.keras.weights_files import KerasWeights
from detrain.adapters.tensorflow.refusals import refuse_fit
from detrain.adapters.tensorflow.rollback import TensorFlowRollback
from detrain.adapters.tensorflow.rules import TensorFlowRules
from detrain.adapters.tensorflow.tracebacks import hide_in
from detrain.adapters.tensorflow.tracing.builder import Builder
from detrain.adapters.tensorflow.updates import TensorFlowUpdates
from detrain.adapters.tensorflow.variables import TensorFlowVariables
from detrain.base import keras_backend
from detrain.base.in_place import in_place_of


class Watchers(msgspec.Struct, frozen=True):
    """The parts of the adapter that are told when Keras is imported."""

    births: Births
    building: Building
    builder: Builder
    variables: TensorFlowVariables
    rollback: TensorFlowRollback
    norms: TensorFlowNorms
    updates: TensorFlowUpdates
    rules: TensorFlowRules
    fit: FitInstrument
    instruments: TensorFlowInstruments | None
    probes: Any
    """See `detrain.adapters.api.Settings.probes`."""


class Keras:
    """Keras 3 and Keras 2 in this process, if the program has imported them."""

    def __init__(self, watchers: Watchers) -> None:
        self._to = watchers
        self._state: KerasState | None = None
        self._state_2: Keras2State | None = None
        self._made: LoopModels | None = None
        self.weights: KerasWeights | None = None

    @property
    def _states(self) -> list[KerasState | Keras2State]:
        return [each for each in (self._state, self._state_2) if each is not None]

    def part_of_made(self, value: object) -> str | None:
        """Return the key of a part of a model that the loop has made; None for any other object."""
        return None if self._made is None else self._made.part(value)

    def state(self) -> dict[str, Any]:
        """Return Keras's own state, and the descriptions of the models that the loop has made."""
        return {
            "keras": None if self._state is None else self._state.state(),
            "keras 2": None if self._state_2 is None else self._state_2.state(),
            "made": [] if self._made is None else self._made.described(),
        }

    def remake(self, made: list[Any]) -> None:
        """Make the models again that the first run's loop had made."""
        if self._made is not None:
            self._made.remake(made)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned, except models that the loop has made."""
        if self._state is not None and state.get("keras") is not None:
            self._state.restore(state["keras"], self._made.again if self._made is not None else frozenset())
        if self._state_2 is not None and state.get("keras 2") is not None:
            self._state_2.restore(state["keras 2"])

    def finish_made(self) -> None:
        """Complete and compare the models that were made again, once all their parts are there."""
        if self._made is not None:
            self._made.finish()
            self._made.check(self._to.variables.has_value)

    def begin_phase(self) -> None:
        """Note the parts of models."""
        for state in self._states:
            state.begin_phase()

    def uncaptured(self) -> list[str]:
        """Return, in words, the models whose parts have changed."""
        return [loss for state in self._states for loss in state.not_captured()]

    def kept_masks(self) -> list[str]:
        """Return the dropout masks that recurrent layers keep from call to call."""
        return [mask for state in self._states for mask in state.kept_masks()]

    def on_import(self, module: str) -> None:
        """Set the hooks for a version of Keras that has just been imported."""
        if module == "tf_keras":
            self._on_keras_2()
        elif module == "keras" and keras_backend.in_process() == "tensorflow":  # else TensorFlow may be here for tf.data alone
            self._on_keras()

    def _on_keras(self) -> None:
        import keras
        from keras.src.legacy.preprocessing.image import Iterator
        from keras.src.legacy.preprocessing.text import Tokenizer
        from keras.src.ops.operation import Operation
        from keras.src.saving import saving_lib
        from keras.src.utils import traceback_utils, tracking

        to, births = self._to, self._to.births
        hide_in(traceback_utils)
        self.weights = weights = KerasWeights(births, to.builder.variable_key)
        to.variables.on_made.append(weights.on_variable)
        for cls in (keras.optimizers.Optimizer, keras.metrics.Metric, keras.random.SeedGenerator):
            watch_class(births, cls)
        self._state = to.builder.keras_states["keras"] = KerasState(births, to.builder.keras_variables)
        self._made = LoopModels(births, to.variables.rename, to.building.take_as_built, to.variables.find, self._owners)
        without_variables = classes_without_variables(keras)
        watch_births(births, without_variables)
        sets = (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, *without_variables)
        watch_sets(to.rollback.note_set, sets)
        watch_frozen(to.rollback.note_set)
        to.norms.on_keras()
        callbacks = (keras.callbacks.Callback, keras.callbacks.CallbackList)
        to.rules.holders += (*callbacks, keras.utils.Progbar, Iterator, Tokenizer)
        to.rules.models += (Operation, keras.optimizers.Optimizer, keras.metrics.Metric)
        _make_monitors_repeatable()
        to.rules.containers += (tracking.TrackedList, tracking.TrackedDict, tracking.TrackedOrderedDict, tracking.TrackedSet)
        original = Operation.__new__

        @functools.wraps(original)
        def layer_made(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, *args, **kwargs)
            births.register(made, cls.__name__, sys._getframe(1))
            weights.on_object(made)
            return made

        Operation.__new__ = staticmethod(layer_made)
        # Keras makes an object of each class in the model as it saves or loads, only to list the attributes.
        saving_lib.get_attr_skipset = births.aside()(saving_lib.get_attr_skipset)
        to.builder.watch_keras()
        to.updates.on_keras()
        to.fit.watch()
        if to.instruments is not None:
            to.instruments.on_keras()

    def _on_keras_2(self) -> None:
        import tf_keras
        from tf_keras.src.utils import traceback_utils

        to = self._to
        hide_in(traceback_utils)
        if to.probes is not None:
            refuse_fit(to.probes)
        classes = (tf_keras.layers.Layer, tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
        for cls in classes:
            watch_class(to.births, cls)
        without_variables = classes_without_variables(tf_keras)
        watch_births(to.births, without_variables)
        watch_sets(to.rollback.note_set, (*classes, *without_variables, tf_keras.src.backend.RandomGenerator))
        to.builder.watch_keras_2()
        to.variables.on_waiting.append(to.builder.make_legacy_slots)
        self._state_2 = to.builder.keras_states["keras 2"] = Keras2State(to.births)
        if to.instruments is not None:
            to.instruments.on_keras_2()

    def _owners(self) -> set[str]:
        return {unit.owner for unit in self._to.building.units()}


def watch_class(births: Births, cls: Any) -> None:
    """Name each object of a class as it is made."""
    original: Callable[..., None] = cls.__init__

    @in_place_of(cls, "__init__")
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        births.register(self, type(self).__name__, sys._getframe(1))
        original(self, *args, **kwargs)


def _make_monitors_repeatable() -> None:
    """Have callbacks that monitor a value choose their comparison anew in a resumed process, which restores
    `min_delta`.

    If less is better, a callback makes the positive `min_delta` negative as it chooses; a restored one is negative
    already.
    """
    from keras.src.callbacks.monitor_callback import MonitorCallback

    original = MonitorCallback._set_monitor_op

    @in_place_of(MonitorCallback, "_set_monitor_op")
    def look(callback: Any) -> None:
        callback.min_delta = abs(callback.min_delta)
        original(callback)
