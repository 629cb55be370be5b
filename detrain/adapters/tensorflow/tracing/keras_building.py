"""The building of Keras's layers, metrics and optimizers at their first call, and how it is done ahead on placeholders.

Keras names the objects that it builds after the scope around: so a call is noted with its scope, and repeated there.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from contextlib import AbstractContextManager
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph

from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.keras.state import names_given
from detrain.adapters.tensorflow.random.graph_kinds import BUILDING_GRAPH
from detrain.adapters.tensorflow.tracing.call_arguments import Calls
from detrain.base.in_place import in_place_of
from detrain.python.inspect.frames import names_of

ON_BATCH: Final = "_maybe_symbolic_build"
"""Keras's method by which a model under a strategy makes its objects for training, at its first single batch."""


class KerasBuilding:
    """The watcher of Keras's building, which does it ahead in a resumed process."""

    def __init__(self, births: Births, building: Building, calls: Calls, variables: KerasVariables) -> None:
        self._births, self._building, self._calls, self._variables = births, building, calls, variables
        self._layer_types: tuple[type[Any], ...] = ()  # known once Keras is imported
        self._optimizer_types: tuple[type[Any], ...] = ()
        self._layer_2_types: tuple[type[Any], ...] = ()
        self._layer_ahead: Any = None
        """The Keras layer that is being built ahead."""

    def is_layer(self, value: object) -> bool:
        """Return whether an object is a layer of Keras 3."""
        return isinstance(value, self._layer_types)

    def watch(self) -> None:
        """Watch Keras's layers and optimizers."""
        import keras
        from keras.src.trainers.compile_utils import CompileMetrics

        self._calls.on_keras()
        building, births = self._building, self._births
        building.names = names_given
        original_build = keras.Layer._maybe_build
        original_metrics = CompileMetrics.build
        self._layer_types = (keras.Layer,)
        self._variables.watch()
        self._optimizer_types = (*self._optimizer_types, keras.optimizers.Optimizer)

        @in_place_of(keras.Layer, "_maybe_build")
        def built(layer: Any, call_spec: Any) -> Any:
            if layer is self._layer_ahead and not layer.built:
                # as in the first run, and without a call: initial values are computed, and restored ones replace them
                with tf.init_scope():
                    original_build(layer, call_spec)
                raise _BuiltAheadError
            if layer.built or tf.inside_function():
                return original_build(layer, call_spec)
            scope = layer._parent_path  # Keras has opened the layer's scope by now
            with building.unit(
                births.key(layer) or "", lambda: self._calls.describe_call((), call_spec.user_arguments_dict, scope)
            ):
                return original_build(layer, call_spec)

        @in_place_of(CompileMetrics, "build")
        def metrics_built(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.inside_function():
                return original_metrics(metrics, *args, **kwargs)
            with building.unit(births.key(metrics) or "", lambda: self._calls.describe_call(args, kwargs)):
                return original_metrics(metrics, *args, **kwargs)

        self._watch_batches(keras.Model)
        for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
            self._watch_apply(optimizer)

    def _watch_batches(self, cls: Any) -> None:
        """Watch the building of a model under a strategy that is given a single batch (`train_on_batch`)."""
        building, births, original = self._building, self._births, getattr(cls, ON_BATCH)

        @in_place_of(cls, ON_BATCH)
        def built(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
            parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss, model.optimizer]
            is_built = all(part is None or part.built for part in parts)
            if model._distribute_strategy is None or data_batch is None or is_built:
                original(model, iterator, data_batch)
                return
            owner = f"{births.key(model)}/{ON_BATCH}"
            with building.unit(owner, lambda: self._calls.describe_call((), {"data_batch": data_batch})):
                original(model, iterator, data_batch)

    def _watch_apply(self, cls: Any) -> None:
        """Watch how the first `apply` builds a Keras optimizer eagerly."""
        building, births, original = self._building, self._births, cls.apply

        @in_place_of(cls, "apply")
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if optimizer.built or tf.inside_function() or trainable_variables is None:
                return original(optimizer, grads, trainable_variables)
            trainable_variables = list(trainable_variables)
            with building.unit(births.key(optimizer) or "", lambda: self._calls.describe_call((trainable_variables,), {})):
                return original(optimizer, grads, trainable_variables)

    def watch_2(self) -> None:
        """Watch the layers of Keras 2. Each is built on its own at its first call, whose arguments are on the stack."""
        from tf_keras.layers import Layer
        from tf_keras.optimizers import Optimizer, legacy

        building, births, original = self._building, self._births, Layer._maybe_build
        original_apply = Optimizer.apply_gradients
        self._layer_2_types, self._optimizer_types = (Layer,), (*self._optimizer_types, Optimizer)

        def describe(layer: Any, inputs: Any, call: dict[str, Any]) -> str | None:
            scope = tf.get_current_name_scope().removesuffix(layer.name)
            return self._calls.describe_call((inputs, *call.get("args", ())), call.get("kwargs", {}), scope)

        @in_place_of(Layer, "_maybe_build")
        def built(layer: Any, inputs: Any) -> Any:
            if layer.built:
                return original(layer, inputs)
            call = names_of(sys._getframe(1))
            with building.unit(births.key(layer) or "", lambda: describe(layer, inputs, call)):
                found = original(layer, inputs)
                if layer is self._layer_ahead and building.is_ahead and isinstance(layer.call, polymorphic_function.Function):
                    raise _BuiltAheadError  # each trace of its `call` is a unit of its own
                return found

        @in_place_of(Optimizer, "apply_gradients")
        def applied(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(optimizer, "_built", False):
                return original_apply(optimizer, grads_and_vars, *args, **kwargs)
            pairs = list(grads_and_vars)
            variables = [variable for _gradient, variable in pairs]
            scope = f"{optimizer.name}/"  # the optimizer's slots are named after it
            with building.unit(births.key(optimizer) or "", lambda: self._calls.describe_call((variables,), {}, scope)):
                return original_apply(optimizer, pairs, *args, **kwargs)

        for optimizer, method in ((Optimizer, "add_variable_from_reference"), (legacy.Optimizer, "add_slot")):
            self._watch_slots(optimizer, method)

    def _watch_slots(self, cls: Any, method: str) -> None:
        """Name the slots of a Keras 2 optimizer after their variables: it makes slots as gradients come, in
        any order.
        """
        births, original = self._births, getattr(cls, method)

        @in_place_of(cls, method)
        def made(*args: Any, **kwargs: Any) -> Any:
            optimizer, variable, name, *_ = [*args, *kwargs.values()]  # all callers pass these in this order
            owner, of = births.key(optimizer), self._variables.key(variable)
            with births.naming(f"{owner}/{name} of {of}") if owner and of else contextlib.nullcontext():
                return original(*args, **kwargs)

    def make_slots(self, waiting: list[str]) -> None:
        """Make slots of Keras 2's legacy optimizers whose values wait: no gradient may come after the loop."""
        from tf_keras.optimizers import legacy

        optimizers: Any = self._births.living(legacy.Optimizer)
        for owner, optimizer in optimizers:
            for key in waiting:
                slot, _, of = key.removeprefix(f"{owner}/").partition(" of ")
                variable = self._births.find(of) if key.startswith(f"{owner}/") and of else None
                if variable is not None:
                    with tf.name_scope(optimizer._name):
                        _ = optimizer.iterations  # made before all slots
                        optimizer.add_slot(variable, slot)

    def build(self, owner: Any, args: list[Any], kwargs: dict[str, Any], scope: str | None) -> None:
        """Build a layer, metric or optimizer for the arguments of its call, in its name scope."""
        if isinstance(owner, self._optimizer_types):
            with self._building.unit(self._births.key(owner) or "", lambda: None), tf.name_scope(scope or ""):
                owner.build(*args)
            return
        if isinstance(owner, self._layer_2_types):
            self._call_on_placeholders(owner, owner, args, kwargs, scope)
            return
        import keras

        if isinstance(owner, keras.Layer) and owner._parent_path is None:
            owner._parent_path = scope  # the layer's variables are named after it, and slots after these
        self._call_on_placeholders(owner, owner.build if isinstance(owner, keras.Metric) else owner, args, kwargs, scope)

    def as_compiled(self, function: Any) -> AbstractContextManager[None]:
        """Have a Keras 2 model train the variables it was compiled for, as its methods do around its train function."""
        parent, _, label = (self._births.key(function) or "").rpartition("/")
        model = self._births.find(parent)
        if not isinstance(model, self._layer_2_types) or not label.startswith("make_train_function"):
            return contextlib.nullcontext()
        from tf_keras.src.engine.training_utils import RespectCompiledTrainableState

        as_compiled: AbstractContextManager[None] = RespectCompiledTrainableState(model)
        return as_compiled

    def _call_on_placeholders(self, owner: Any, what: Any, args: list[Any], kwargs: dict[str, Any], scope: str | None) -> None:
        with func_graph.FuncGraph(BUILDING_GRAPH).as_default(), tf.name_scope(scope or ""):
            placeholders = tf.nest.map_structure(_placeholder, (args, kwargs))
            self._layer_ahead = owner
            with self._building.unit(self._births.key(owner) or "", lambda: None), contextlib.suppress(_BuiltAheadError):
                what(*placeholders[0], **placeholders[1])


class _BuiltAheadError(BaseException):
    """Raised once a layer is built and need not be called. It is no Exception, which Keras would report."""


def _placeholder(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensorSpec):
        inner = value._shape[value.ragged_rank + 1 :]
        return tf.compat.v1.ragged.placeholder(value.dtype, value.ragged_rank, inner)
    if isinstance(value, tf.SparseTensorSpec):
        return tf.compat.v1.sparse_placeholder(value.dtype, value.shape)
    return tf.compat.v1.placeholder(value.dtype, value.shape) if isinstance(value, tf.TensorSpec) else value


class KerasVariables:
    """Keras's variables, each known once it has a value."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._variables: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._types: tuple[type[Any], ...] = ()  # known once Keras is imported

    def watch(self) -> None:
        """Watch Keras's variables: Keras has been imported."""
        from keras.src.backend.tensorflow.core import Variable

        self._types = (Variable,)
        original = Variable._initialize

        @in_place_of(Variable, "_initialize")
        def initialized(variable: Any, value: Any) -> None:
            original(variable, value)
            key = self.key(variable)
            if key is not None:
                self._variables[key] = variable

    def key(self, value: Any) -> str | None:
        """Return the key of a variable of TensorFlow or Keras; None for anything else."""
        inner = value._value if isinstance(value, self._types) else value
        return self._births.key(inner) if issubclass(type(inner), tf.Variable) else None

    def alive(self) -> list[tuple[str, Any]]:
        """Return (key, variable) of each living variable of Keras."""
        return list(self._variables.items())

    def find(self, key: str) -> Any:
        """Return Keras's variable around the variable with a key, or None."""
        return self._variables.get(key)

    def rename(self, before: str, key: str | None) -> None:
        """Give the Keras variable with a key, if there is one, another key, or none."""
        variable = self._variables.pop(before, None)
        if variable is not None and key is not None:
            self._variables[key] = variable
