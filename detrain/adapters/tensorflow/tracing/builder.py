"""Building ahead for TensorFlow and Keras: a resumed process builds each unit of an earlier one, in order, by its call.

`traced_functions` and `keras_building` watch the building; this module keeps the order and finds the owners.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from detrain.adapters.lazy_building import Building, BuiltUnit
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.summary_writers import Summaries
from detrain.adapters.tensorflow.tracing.call_arguments import Calls
from detrain.adapters.tensorflow.tracing.captured_python import CapturedReads
from detrain.adapters.tensorflow.tracing.keras_building import ON_BATCH, KerasBuilding, KerasVariables
from detrain.adapters.tensorflow.tracing.model_functions import MAKERS, MethodOwners, in_keras_at, made_again, make_again, maker_of
from detrain.adapters.tensorflow.tracing.traced_functions import TracedFunctions
from detrain.adapters.tensorflow.values.json_values import NotThereError
from detrain.base import messages
from detrain.base.errors import DetrainError

FUNCTION: Final = "tensorflow.function"
"""The kind, in a checkpoint, of a method that the loop has compiled."""


class Builder:
    """The watcher of lazy building, which builds its units ahead in a resumed process."""

    def __init__(self, births: Births, building: Building, summaries: Summaries) -> None:
        self._births = births
        self._building = building
        self._variables = variables = KerasVariables(births)
        self.variable_key, self.keras_variable = variables.key, variables.find
        self.keras_variables, self.rename_variable = variables.alive, variables.rename
        self._calls = calls = Calls(births, variables.key, variables.find)
        self._keras = KerasBuilding(births, building, calls, variables)
        self.watch_keras, self.watch_keras_2 = self._keras.watch, self._keras.watch_2
        self.make_legacy_slots = self._keras.make_slots
        self._owners = MethodOwners(births)
        self._waiting: list[BuiltUnit] = []
        """Units whose owners did not exist when all others were built ahead."""
        self.is_in_loop = False
        building.has_company = _has_company
        building.reads, building.as_read, building.noting = self._reads, self._as_read, self._noting
        self._summaries = summaries
        self._values = CapturedReads(births)
        self.keras_states: dict[str, Any] = {}
        """The states of Keras 3 and 2: they read the values that the loop set on Keras's objects, and put
        them in place."""
        self._functions = TracedFunctions(births, building, calls, self._owners, summaries, lambda: self.is_in_loop)
        self.function_parts, self.remake_function = self._functions.parts, self._functions.remake

    @property
    def holds_metrics(self) -> bool:
        """True if a compiled function has captured a metric that the loop has made."""
        return self._functions.holds_metrics

    def made_again(self) -> dict[str, dict[str, str]]:
        """Return, by model and maker, the present functions of models that were told to make new ones."""
        return made_again(self._births)

    def make_again(self, made: Mapping[str, Mapping[str, str]]) -> None:
        """Have models make such functions until they have the given ones."""
        make_again(self._births, made)

    def build_ahead(self, units: list[BuiltUnit]) -> None:
        """Build an earlier process's units in order; a unit that cannot be built ahead is left for later."""
        self._building.is_ahead = True
        self._owners.note_before(units)
        left: list[str] = []
        self._waiting = []
        for unit in units:
            if self._building.is_built(unit):
                continue
            owner = self._find(unit.owner)
            if owner is None:
                self._waiting.append(unit)
            # A layer that was built by itself after the model that it is in: that model must not find it built.
            is_within_left = self._keras.is_layer(owner) and any(unit.owner.startswith(f"{each}/") for each in left)
            if owner is None or is_within_left or not self._is_built_ahead(owner, unit):
                left.append(unit.owner)
        self._building.is_ahead = False

    def build_made(self) -> None:
        """Build the units of functions that the loop had made and that have been made again: in order, and only once
        the program's state is restored, since they may be called in another order than at first.
        """
        for unit in self._waiting:
            owner = self._births.find(unit.owner)
            if owner is not None and not self._building.is_built(unit):
                self._is_built_ahead(owner, unit)
        self._waiting = []

    def _is_built_ahead(self, owner: object, unit: BuiltUnit) -> bool:
        """Build a unit; return whether that could be done."""
        if unit.call is None:
            return False
        try:
            self._build(owner, json.loads(unit.call))
        except DetrainError:
            raise
        except NotThereError:  # it names an object that is built when it is needed, and so is this unit
            return False
        except Exception as error:  # an edge: tracing runs the program's code, which may raise anything
            if not unit.has_failed:
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                messages.warn(f"cannot build {unit.owner!r} ahead ({why}); it is built when needed")
            return False
        return True

    def _reads(self, key: str) -> dict[str, Any]:
        function = self._births.find(key) if self.is_in_loop else None
        if not isinstance(function, polymorphic_function.Function):
            return {}
        found: dict[str, Any] = {
            "values": self._values.reads(function, maker_of(self._births, key)),
            "summaries": self._summaries.read(),
        }
        return found | {name: changed for name, state in self.keras_states.items() if (changed := state.set_in_loop())}

    @contextlib.contextmanager
    def _as_read(self, key: str, reads: dict[str, Any]) -> Iterator[None]:
        function = self._births.find(key) if reads else None
        with contextlib.ExitStack() as stack:
            if function is not None:
                stack.enter_context(self._summaries.as_read(reads.get("summaries", {}), is_ahead=self._building.is_ahead))
                for name, state in self.keras_states.items():
                    stack.enter_context(state.as_set(reads.get(name, {})))
                stack.enter_context(self._values.as_read(function, maker_of(self._births, key), reads["values"]))
            yield

    def _noting(self, reads: dict[str, Any]) -> AbstractContextManager[None]:
        return self._summaries.noting(reads.get("summaries", {}))

    def _find(self, key: str) -> Any:
        """Return the owner with a key; a function that Keras or an attribute access makes is made for it."""
        found = self._births.find(key)
        if found is not None:
            return found
        parent_key, _, label = key.rpartition("/")
        parent = self._births.find(parent_key)
        maker = label.partition(" ")[0]
        if label == ON_BATCH and parent is not None:
            return getattr(parent, ON_BATCH)
        if parent is not None and maker in MAKERS:
            getattr(parent, maker)()
        elif isinstance(parent, polymorphic_function.Function):
            self._owners.make(key, parent)
        return self._births.find(key)

    def _build(self, owner: Any, call: dict[str, Any]) -> None:
        if call.get("strategy") is None:
            self._build_in_scope(owner, call)
            return
        with self._calls.recall({"key": call["strategy"]}).scope():  # gives all variables and slots the same kind
            self._build_in_scope(owner, call)

    def _build_in_scope(self, owner: Any, call: dict[str, Any]) -> None:
        args, kwargs = self._calls.recall_arguments(call)
        if isinstance(owner, MethodType):
            owner(*args, **kwargs)
        elif isinstance(owner, polymorphic_function.Function):
            # An initial value that the function draws for a variable cannot be had outside of it; the value at the cut
            # is restored.
            with contextlib.suppress(lift_to_graph.UnliftableError), self._keras.as_compiled(owner), in_keras_at(call.get("scope")):
                owner.get_concrete_function(*args, **kwargs)
        else:
            self._keras.build(owner, args, kwargs, call["scope"])


def _has_company() -> bool:
    """Return whether this code runs in one of several replicas of a strategy."""
    return not tf.distribute.in_cross_replica_context() and bool(tf.distribute.get_strategy().num_replicas_in_sync > 1)
