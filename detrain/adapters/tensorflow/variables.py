"""The registry of TensorFlow's variables: each is noted when made, named by `Births`, read without a copy, and set
again.

It holds variables weakly. A value whose variable does not exist yet (a slot that an optimizer makes lazily) waits for
the variable.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops, variables

from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.tracing.builder import Builder
from detrain.adapters.tensorflow.values.lookup_tables import Tables, is_of_table
from detrain.adapters.tensorflow.values.tensors import HIDDEN, NO_NUMBERS, new_array, read_each, taken_over
from detrain.base.digest import Array
from detrain.base.errors import Diverged
from detrain.base.in_place import in_place_of


class TensorFlowVariables:
    """See `detrain.adapters.api.VariableRegistry`.

    The functions in `on_change` are called when a variable is made or dropped, those in `on_made` when one is made, and
    those in `on_waiting` with the keys of values whose variable does not exist yet.
    """

    def __init__(self, births: Births, building: Building, builder: Callable[[], Builder]) -> None:
        self._births, self._building, self._builder = births, building, builder
        self._tables = Tables(births)
        self._known: dict[str, weakref.ref[Any]] = {}
        self._handles: dict[int, str] = {}
        self._pending: dict[str, Array] = {}
        self._strays: list[str] = []
        self.on_change: list[Callable[[], None]] = []
        self.on_made: list[Callable[[], None]] = []
        self.on_waiting: list[Callable[[list[str]], None]] = []

    def alive(self) -> dict[str, Any]:
        """Return the living variables, by key."""
        found = {}
        for key, reference in list(self._known.items()):
            variable = reference()
            if variable is None:
                del self._known[key]
            else:
                found[key] = variable
        return found

    def tensors(self) -> dict[str, Array]:
        """Return the variables' values (axes as in TensorFlow), including those that still wait for their variable."""
        # Copied: a variable may be made, and take over a waiting value's memory, while this result is being written.
        values = {key: np.array(array) for key, array in self._pending.items()}
        values.update(read_each(self.alive()))
        values.update(self._tables.arrays())
        return values

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array for `restore`, to be filled."""
        return new_array(shape, dtype)

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set the variables; a value whose variable does not exist yet waits for it."""
        alive = self.alive()
        self._pending, self._strays = {}, [key for key in self._strays if key not in tensors]
        of_tables = {}
        for key, array in tensors.items():
            if is_of_table(key):
                of_tables[key] = array
            elif key in alive:
                _assign(key, alive[key], array)
            else:
                self._pending[key] = array
        for key, checkpoint in self._births.living(tf.train.Checkpoint):
            if f"{key}/save_counter" in self._pending:  # made when the checkpoint is first saved, or asked for it
                _ = checkpoint.save_counter  # type: ignore[attr-defined]
        for call in self.on_waiting:
            call(list(self._pending))
        self._tables.restore(of_tables)

    def set_value(self, key: str, array: Array) -> None:
        """Give a living variable another value."""
        _assign(key, self.alive()[key], array)

    def unclaimed(self) -> list[str]:
        """Return the variables that this process made in place of the first run's from before the cut, but without
        their values.
        """
        if any(key in self.alive() for key in self._strays):
            gc.collect()  # variables that a layer makes in its call, and nobody holds
        return [key for key in self._strays if key in self.alive()]

    def has_value(self, key: str) -> bool:
        """Return whether a variable has its value from the checkpoint."""
        return key not in self._pending and key not in self._strays

    def describe_variable(self, value: object) -> list[str | bool] | None:
        """Return [key, library, whether it is trainable, name] of a TensorFlow or Keras variable; else None."""
        key = self._builder().variable_key(value)
        if key is None:
            return None
        owner, name = "tensorflow" if isinstance(value, tf.Variable) else "keras", str(value.name)  # type: ignore[attr-defined]
        return [key, owner, bool(getattr(value, "trainable", True)), name]

    def find_variable(self, described: list[str | bool], *, makes: bool) -> object | None:
        """Return the variable with a description, or None.

        If `makes`, a TensorFlow variable that the loop made is made again, with the checkpoint's value.
        """
        key, owner, is_trainable, name = str(described[0]), described[1], bool(described[2]), str(described[3])
        if owner == "keras":
            keras_variable: object | None = self._builder().keras_variable(key)
            return keras_variable
        found = self._births.find(key)
        if found is None and makes and key in self._pending:
            with self._births.naming(key):
                # Slots of optimizers are named after the variable.
                found = tf.Variable(self._pending[key], trainable=is_trainable, name=name.partition(":")[0] or None)
        return found

    def find(self, key: str) -> object | None:
        """Return Keras's variable with a key, else any other object that was named by this key."""
        found: object | None = self._builder().keras_variable(key)
        return self._births.find(key) if found is None else found

    def uncaptured(self) -> list[str]:
        """Return, in words, the variables that hold no numbers."""
        alive = self.alive().items()
        return [f"{key} (a variable of {variable.dtype.name})" for key, variable in alive if variable.dtype in NO_NUMBERS]

    def watch(self) -> None:
        """Note every variable once its construction is complete: inside it, initial values are assigned at several
        moments.
        """
        metaclass = variables.VariableMetaclass
        original = metaclass.__call__

        @in_place_of(metaclass, "__call__")
        def constructed(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, *args, **kwargs)
            if isinstance(made, resource_variable_ops.BaseResourceVariable):
                self._on_variable(made)
            return made

    def _on_variable(self, variable: Any) -> None:
        if isinstance(variable, resource_variable_ops._UnreadVariable) or variable._in_graph_mode:
            return
        identity = id(variable.handle)
        # The outer one of nested constructor calls, or another Python object for a known variable.
        if identity in self._handles:
            return
        # Without scopes: in a graph, where layers are built ahead, TensorFlow makes scopes unique (`dense_1_1`).
        label = str(variable.name).partition(":")[0].rpartition("/")[2]
        if label == HIDDEN or self._births.is_aside:
            return
        key = self._births.register(variable, label, sys._getframe(2))
        weakref.finalize(variable.handle, self._handles.pop, identity, None)
        self._keep(key, variable)
        for call in self.on_made:
            call()
        self._note_change()
        if self._births.is_apart:
            return
        if key in self._pending:
            with tf.init_scope():
                _assign(key, variable, self._pending.pop(key))
        elif self._building.is_again:
            self._strays.append(key)

    def rename(self, value: Any, key: str | None) -> None:
        """Give an object that was made again its key of the first run; with None, no key."""
        variable = getattr(value, "_value", value)
        if not isinstance(variable, resource_variable_ops.BaseResourceVariable):
            self._births.rename(value, key)
            return
        before = self._handles.pop(id(variable.handle))
        self._known.pop(before, None)
        self._births.rename(variable, key)
        self._builder().rename_variable(before, key)
        if key is not None:
            self._keep(key, variable)
            if key in self._pending:
                _assign(key, variable, self._pending.pop(key))
            else:
                self._strays.append(key)  # until its value is restored
        self._note_change()

    def _keep(self, key: str, variable: Any) -> None:
        self._handles[id(variable.handle)] = key
        self._known[key] = weakref.ref(variable, self._note_change)

    def _note_change(self, _reference: object = None) -> None:
        for call in self.on_change:
            call()


def _assign(key: str, variable: Any, array: Array) -> None:
    if not variable.shape.is_compatible_with(array.shape) or variable.dtype.as_numpy_dtype != array.dtype.type:
        raise Diverged(
            f"variable {key!r} is {variable.dtype.name}{list(variable.shape)}, the checkpoint has {array.dtype}{list(array.shape)}",
            "the program makes another model than the first run did; start anew with --fresh",
        )
    with tf.device(variable.handle.device):
        gen_resource_variable_ops.assign_variable_op(variable.handle, taken_over(array, variable.dtype))
