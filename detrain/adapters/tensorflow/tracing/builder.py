"""Building ahead for TensorFlow and Keras: what a function or layer was called with, and the call again, on placeholders."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import FrameType, FunctionType, MethodType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gradients_util

from detrain.adapters.lazy_building import Building, Unit
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.keras.state import names_given
from detrain.adapters.tensorflow.summary_writers import Summaries
from detrain.adapters.tensorflow.tracing.call_arguments import Calls
from detrain.adapters.tensorflow.tracing.captured_python import Reads
from detrain.adapters.tensorflow.tracing.json_values import NotThereError
from detrain.adapters.tensorflow.tracing.trace_digest import form
from detrain.base import messages
from detrain.base.digest import digest_bytes
from detrain.base.errors import DetrainError
from detrain.python.codec.state_rules import has_contents
from detrain.python.inspect.frames import has_user_code, names_of
from detrain.python.inspect.names import is_user_class

BUILDING_GRAPH: Final = "detrain_build"
"""The graph in which layers are built ahead, which nothing runs."""
FUNCTION: Final = "tensorflow.function"
"""The kind of a method that the loop has compiled, in a checkpoint."""
_OF_DATASET: Final = "_tf_data_function"
"""The attribute of functions that tf.data makes around those of the program."""
_FIRST_VALUES: Final = "Function._initialize_uninitialized_variables.<locals>.initialize_variables"
"""TensorFlow's function that gives a function's new variables their first values: it leaves out those that have been restored."""
_FOR_INSTANCE: Final = "class_method_to_instance_method"
"""TensorFlow's function that compiles a method for one object."""
_MOST_HELD: Final = 64
"""So many things that one object holds tell it from others."""
_ON_BATCH: Final = "_maybe_symbolic_build"
"""Keras's method by which a model that a strategy mirrors makes what it trains with, at the first of its batches."""
_MAKERS = ("make_train_function", "make_test_function", "make_predict_function")


class Builder:
    """Watches what is built, and builds it ahead in a resumed process."""

    def __init__(self, births: Births, building: Building, summaries: Summaries) -> None:
        self._births = births
        self._building = building
        self._keras_variables: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._calls = Calls(births, self.variable_key, self.keras_variable)
        self._keras_types: tuple[type[Any], ...] = ()  # known once Keras is imported
        self._layer_types: tuple[type[Any], ...] = ()
        self._optimizer_types: tuple[type[Any], ...] = ()
        self._layer_2_types: tuple[type[Any], ...] = ()
        self._options: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any]]] = weakref.WeakKeyDictionary()
        """How the loop has compiled methods."""
        self._held: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
        """Of the functions that are compiled for each object with a method: what the object held when they were made."""
        self._held_before: dict[str, dict[str, str]] = {}
        """The same, by the keys of the functions that the run had before it was resumed."""
        self._waiting: list[Unit] = []
        """What owners had built which were not there when all else was built ahead."""
        self._of_datasets: set[str] = set()
        """Keys of the functions that sets of tf.data call."""
        self.is_in_loop = False
        self.holds_metrics = False
        """Whether a compiled function has taken hold of a metric that the loop has made."""
        self._layer_ahead: Any = None
        """The layer of Keras's that is being built ahead."""
        building.has_company = _has_company
        building.reads, building.as_read, building.noting = self._reads, self._as_read, self._noting
        self._summaries = summaries
        self._values = Reads(births)
        self.keras_states: dict[str, Any] = {}
        """Which say what the loop has set on Keras's objects, and put it in place."""
        self._watch_functions()

    def function_parts(self, value: Any) -> list[object] | None:
        """Return what a method that the loop has compiled is made of, or None for anything else."""
        found = self._options.get(value) if isinstance(value, polymorphic_function.Function) else None
        options = None if found is None else self._calls.describe_call(*found)
        return None if options is None else [self._births.key(value), value.python_function, options]

    def remake_function(self, key: str, method: Any, options: str) -> object:
        """Return the compiled method with a key; one that the loop had made is made again."""
        found = self._births.find(key)
        if found is not None:
            return found
        args, kwargs = self._calls.recall_arguments(json.loads(options))
        with self._births.naming(key):
            return polymorphic_function.Function(method, *args, **kwargs)

    def build_ahead(self, units: list[Unit]) -> None:
        """Build, in order, what an earlier process had built; what cannot be built ahead is left for later."""
        self._building.is_ahead = True
        self._held_before |= {unit.owner: unit.held for unit in units}
        left: list[str] = []
        self._waiting = []
        for unit in units:
            if self._building.is_built(unit):
                continue
            owner = self._find(unit.owner)
            if owner is None:
                self._waiting.append(unit)
            # A layer that was built by itself after the model that it is in: that model must not find it built.
            is_within_left = isinstance(owner, self._layer_types) and any(unit.owner.startswith(f"{each}/") for each in left)
            if owner is None or is_within_left or not self._is_built_ahead(owner, unit):
                left.append(unit.owner)
        self._building.is_ahead = False

    def rename_variable(self, before: str, key: str | None) -> None:
        """Give one of Keras's variables, if it is one, another key, or none."""
        variable = self._keras_variables.pop(before, None)
        if variable is not None and key is not None:
            self._keras_variables[key] = variable

    def build_made(self) -> None:
        """Build what was built by functions that the loop had made and that have been made again: in order, and once the program
        is as it was, for these may be called in another order than they first were."""
        for unit in self._waiting:
            owner = self._births.find(unit.owner)
            if owner is not None and not self._building.is_built(unit):
                self._is_built_ahead(owner, unit)
        self._waiting = []

    def _is_built_ahead(self, owner: object, unit: Unit) -> bool:
        """Build a unit; return whether it could be done."""
        if unit.call is None:
            return False
        try:
            self._build(owner, json.loads(unit.call))
        except DetrainError:
            raise
        except NotThereError:  # of something that is built when it is needed, and so is this
            return False
        except Exception as error:  # an edge: tracing runs the program's code, which may raise anything
            if not unit.has_failed:
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                messages.warn(f"cannot build {unit.owner!r} ahead ({why}); it is built when needed")
            return False
        return True

    def watch_keras(self) -> None:
        """Watch Keras's layers and optimizers."""
        import keras
        from keras.src.backend.tensorflow.core import Variable
        from keras.src.trainers.compile_utils import CompileMetrics

        self._calls.on_keras()
        building, births = self._building, self._births
        building.names = names_given
        original_build = keras.Layer._maybe_build
        original_metrics = CompileMetrics.build
        original_initialize = Variable._initialize
        self._keras_types, self._layer_types = (Variable,), (keras.Layer,)
        self._optimizer_types = (*self._optimizer_types, keras.optimizers.Optimizer)

        @functools.wraps(original_build)
        def built(layer: Any, call_spec: Any) -> Any:
            if layer is self._layer_ahead and not layer.built:
                with tf.init_scope():  # as the first run did, whose calls come later: first values are computed, others restored
                    original_build(layer, call_spec)
                raise _BuiltAheadError
            if layer.built or tf.inside_function():
                return original_build(layer, call_spec)
            scope = layer._parent_path  # Keras has opened the layer's scope by now
            with building.unit(
                births.key(layer) or "", lambda: self._calls.describe_call((), call_spec.user_arguments_dict, scope)
            ):
                return original_build(layer, call_spec)

        @functools.wraps(original_initialize)
        def initialized(variable: Any, value: Any) -> None:
            original_initialize(variable, value)
            key = self.variable_key(variable)
            if key is not None:
                self._keras_variables[key] = variable

        @functools.wraps(original_metrics)
        def metrics_built(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.inside_function():
                return original_metrics(metrics, *args, **kwargs)
            with building.unit(births.key(metrics) or "", lambda: self._calls.describe_call(args, kwargs)):
                return original_metrics(metrics, *args, **kwargs)

        CompileMetrics.build = metrics_built
        keras.Layer._maybe_build = built
        self._watch_batches(keras.Model)
        for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
            self._watch_apply(optimizer)
        Variable._initialize = initialized

    def _watch_batches(self, cls: Any) -> None:
        """Watch what a model under a strategy makes as it is given a batch by itself (`train_on_batch`)."""
        building, births, original = self._building, self._births, getattr(cls, _ON_BATCH)

        @functools.wraps(original)
        def built(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
            parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss, model.optimizer]
            is_built = all(part is None or part.built for part in parts)
            if model._distribute_strategy is None or data_batch is None or is_built:
                original(model, iterator, data_batch)
                return
            owner = f"{births.key(model)}/{_ON_BATCH}"
            with building.unit(owner, lambda: self._calls.describe_call((), {"data_batch": data_batch})):
                original(model, iterator, data_batch)

        setattr(cls, _ON_BATCH, built)

    def _watch_apply(self, cls: Any) -> None:
        """Watch how an optimizer of Keras is built by its first `apply`, eagerly."""
        building, births, original = self._building, self._births, cls.apply

        @functools.wraps(original)
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if optimizer.built or tf.inside_function() or trainable_variables is None:
                return original(optimizer, grads, trainable_variables)
            trainable_variables = list(trainable_variables)
            with building.unit(births.key(optimizer) or "", lambda: self._calls.describe_call((trainable_variables,), {})):
                return original(optimizer, grads, trainable_variables)

        cls.apply = applied

    def watch_keras_2(self) -> None:
        """Watch the layers of Keras 2. Each is built by itself, when it is first called: the call stands on the stack."""
        from tf_keras.layers import Layer
        from tf_keras.optimizers import Optimizer, legacy

        building, births, original = self._building, self._births, Layer._maybe_build
        original_apply = Optimizer.apply_gradients
        self._layer_2_types, self._optimizer_types = (Layer,), (*self._optimizer_types, Optimizer)

        def describe(layer: Any, inputs: Any, call: dict[str, Any]) -> str | None:
            scope = tf.get_current_name_scope().removesuffix(layer.name)
            return self._calls.describe_call((inputs, *call.get("args", ())), call.get("kwargs", {}), scope)

        @functools.wraps(original)
        def built(layer: Any, inputs: Any) -> Any:
            if layer.built:
                return original(layer, inputs)
            call = names_of(sys._getframe(1))
            with building.unit(births.key(layer) or "", lambda: describe(layer, inputs, call)):
                found = original(layer, inputs)
                if layer is self._layer_ahead and building.is_ahead and isinstance(layer.call, polymorphic_function.Function):
                    raise _BuiltAheadError  # each trace of it is a piece of building by itself
                return found

        @functools.wraps(original_apply)
        def applied(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(optimizer, "_built", False):
                return original_apply(optimizer, grads_and_vars, *args, **kwargs)
            pairs = list(grads_and_vars)
            variables = [variable for _gradient, variable in pairs]
            scope = f"{optimizer.name}/"  # its slots are named after it
            with building.unit(births.key(optimizer) or "", lambda: self._calls.describe_call((variables,), {}, scope)):
                return original_apply(optimizer, pairs, *args, **kwargs)

        Layer._maybe_build = built
        Optimizer.apply_gradients = applied
        for optimizer, method in ((Optimizer, "add_variable_from_reference"), (legacy.Optimizer, "add_slot")):
            self._watch_slots(optimizer, method)

    def _watch_slots(self, cls: Any, method: str) -> None:
        """Name the slots of an optimizer of Keras 2 after their variables: it makes them where a gradient comes, in any order."""
        births, original = self._births, getattr(cls, method)

        @functools.wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:
            optimizer, variable, name, *_ = [*args, *kwargs.values()]  # its callers give all in this order
            owner, of = births.key(optimizer), self.variable_key(variable)
            with births.naming(f"{owner}/{name} of {of}") if owner and of else contextlib.nullcontext():
                return original(*args, **kwargs)

        setattr(cls, method, made)

    def variable_key(self, value: Any) -> str | None:
        """Return the key of a variable, TensorFlow's or Keras's."""
        inner = value._value if isinstance(value, self._keras_types) else value
        return self._births.key(inner) if issubclass(type(inner), tf.Variable) else None

    def keras_variables(self) -> list[tuple[str, Any]]:
        """Return Keras's variables that are alive, after their keys."""
        return list(self._keras_variables.items())

    def keras_variable(self, key: str) -> Any:
        """Return Keras's variable around the variable with a key, or None."""
        return self._keras_variables.get(key)

    def _watch_functions(self) -> None:
        births, building = self._births, self._building
        original = polymorphic_function.Function.__init__
        original_graph = func_graph.FuncGraph.__init__
        original_trace = func_graph.func_graph_from_py_func

        @functools.wraps(original)
        def function_made(function: Any, python_function: Any, *args: Any, **kwargs: Any) -> None:
            frame = sys._getframe(1)
            label = _function_label(python_function, frame)
            if frame.f_code.co_name == _FOR_INSTANCE:
                around = names_of(frame)
                held = self._held[function] = self._held_by(around["instance"])
                known = self._known_by(f"{births.key(around['original_function'])}/{label}", held)
            else:
                known = None
            with births.naming(known) if known else contextlib.nullcontext():
                key = births.register(function, label, frame)
            if _OF_DATASET in (kwargs.get("experimental_attributes") or ()):
                self._of_datasets.add(key)
                weakref.finalize(function, self._of_datasets.discard, key).atexit = False
            original(function, python_function, *args, **kwargs)
            if self.is_in_loop and (isinstance(python_function, MethodType) or has_user_code(python_function)):
                self._options[function] = (args, kwargs)

        @functools.wraps(original_graph)
        def graph_made(graph: Any, *args: Any, **kwargs: Any) -> None:
            original_graph(graph, *args, **kwargs)
            graph.detrain_function = births.owner(sys._getframe(1), polymorphic_function.Function)

        @functools.wraps(original_trace)
        def traced(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            owner = births.owner(frame, polymorphic_function.Function)
            name = getattr(kwargs.get("python_func", args[1] if len(args) > 1 else None), "__qualname__", "")
            # A set's own function is traced as the set is made, at the same moment in each run, and for each set anew.
            is_of_dataset = owner in self._of_datasets
            function = births.find(owner)  # none for graphs that no function of the program's is traced for
            held = self._held.get(function, {}) if function is not None else {}
            with building.not_noted() if is_of_dataset else self._unit_of_trace(frame, owner, held):
                if building.is_again and (made := kwargs.get("func_graph")) is not None:
                    made.seed = building.seed[0]()  # it was made just before
                graph = original_trace(*args, **kwargs)
                self._note_captured(graph)
                if owner and name != _FIRST_VALUES:
                    building.note_form(form(graph, self._keys_of_handles()))
                return graph

        polymorphic_function.Function.__init__ = function_made
        func_graph.FuncGraph.__init__ = graph_made
        func_graph.func_graph_from_py_func = traced

    def _unit_of_trace(self, frame: FrameType, owner: str, held: dict[str, str]) -> AbstractContextManager[None]:
        """Return the piece of building that a trace is. Gradients of functions are traced as calls with them come, in any order."""
        building = self._building
        if owner and not building.is_inside and _is_of_gradient(frame):
            of = digest_bytes((self._describe_trace(frame, owner) or "").encode())
            return building.unit(f"{owner} gradient {of}", lambda: None)
        return building.unit(owner, lambda: self._describe_trace(frame, owner), held)

    def _reads(self, key: str) -> dict[str, Any]:
        function = self._births.find(key) if self.is_in_loop else None
        if not isinstance(function, polymorphic_function.Function):
            return {}
        found: dict[str, Any] = {
            "values": self._values.reads(function, self._maker(key)),
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
                stack.enter_context(self._values.as_read(function, self._maker(key), reads["values"]))
            yield

    def _noting(self, reads: dict[str, Any]) -> AbstractContextManager[None]:
        return self._summaries.noting(reads.get("summaries", {}))

    def made_again(self) -> dict[str, dict[str, str]]:
        """Return, by model, the functions that it trains, tests and predicts with, where it was told to make another one."""
        found: dict[str, dict[str, str]] = {}
        for key, model in self._births.alive():
            for maker in _MAKERS:
                held = self._function_in(vars(model).get(maker.removeprefix("make_"))) if hasattr(model, "__dict__") else None
                if held is not None and held.rpartition("/")[2].rpartition(".")[2].isdecimal():
                    found.setdefault(key, {})[maker] = held
        return found

    def make_again(self, made: Mapping[str, Mapping[str, str]]) -> None:
        """Have models make such functions until they have those."""
        for key, makers in made.items():
            model: Any = self._births.find(key)
            for maker, function in makers.items():
                turns = int(function.rpartition(".")[2]) + 1
                while turns and model is not None and self._function_in(vars(model).get(maker.removeprefix("make_"))) != function:
                    getattr(model, maker)(force=True)
                    turns -= 1

    def _function_in(self, value: Any) -> str | None:
        """Return the key of the compiled function that a function of Keras's is, or calls."""
        if isinstance(value, polymorphic_function.Function):
            return self._births.key(value)
        if not isinstance(value, FunctionType):
            return None
        cells = [cell.cell_contents for cell in value.__closure__ or () if has_contents(cell)]
        return next((self._births.key(each) for each in cells if isinstance(each, polymorphic_function.Function)), None)

    def _maker(self, key: str) -> object:
        """Return the object of Keras's whose method has made a function, or None."""
        found = self._births.find(key.rpartition("/")[0])
        return None if isinstance(found, polymorphic_function.Function) else found

    def _held_by(self, value: Any, path: str = "", depth: int = 3) -> dict[str, str]:
        """Return the keys of the objects with one that an object holds, by where: what tells it from others of its class."""
        key = self._births.key(value)
        if key is not None or not depth:
            return {path: key} if key is not None else {}
        if isinstance(value, dict):
            items = [(str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            items = [(str(number), each) for number, each in enumerate(value[:_MOST_HELD])]
        else:
            items = list(getattr(value, "__dict__", {}).items()) if is_user_class(type(value)) else []
        found: dict[str, str] = {}
        for name, each in items[:_MOST_HELD]:
            found |= self._held_by(each, f"{path}.{name}", depth - 1)
        return found

    def _known_by(self, key: str, held: dict[str, str]) -> str | None:
        """Return the key that the run had for a function, compiled for an object that holds this, before it was resumed."""
        same = [known for known, was in self._held_before.items() if known.partition(".")[0] == key and _agree(was, held)]
        return same[0] if len(same) == 1 and self._births.find(same[0]) is None else None

    def _keys_of_handles(self) -> dict[int, str]:
        """Return the keys of the variables alive, by the identity of their handles."""
        return {id(variable.handle): key for key, variable in self._births.living(tf.Variable) if hasattr(variable, "handle")}

    def _note_captured(self, graph: Any) -> None:
        """Note whether a function has taken hold of a writer, or of a metric that the loop has made: it stays with that one."""
        handles = {id(outer) for outer, _inner in graph.captures if outer.dtype is tf.resource}
        self._summaries.note_captured(handles)
        for key, variable in self._births.living(tf.Variable) if handles and not self.holds_metrics else ():
            if self._births.is_of_loop(variable) and id(getattr(variable, "handle", None)) in handles:
                self.holds_metrics |= hasattr(self._births.find(key.rpartition("/")[0]), "update_state")

    def _describe_trace(self, frame: FrameType | None, owner: str) -> str | None:
        """Return the call that a function is being traced for, from its frame on the stack."""
        while frame is not None:
            names = frame.f_code.co_varnames
            if names[:1] == ("self",) and frame.f_code.co_name in ("_call", "_get_concrete_function_garbage_collected"):
                values = names_of(frame)
                if self._births.key(values.get("self")) == owner:
                    given = values.get("args", ()), values.get("kwds", values.get("kwargs", {}))
                    return self._calls.describe_call(*given, _path_in_keras())
            frame = frame.f_back
        return None

    def _find(self, key: str) -> Any:
        """Return the owner with a key, having it made if it is a function that Keras or an attribute look-up makes."""
        found = self._births.find(key)
        if found is not None:
            return found
        parent_key, _, label = key.rpartition("/")
        parent = self._births.find(parent_key)
        maker = label.partition(" ")[0]
        if label == _ON_BATCH and parent is not None:
            return getattr(parent, _ON_BATCH)
        if parent is not None and maker in _MAKERS:
            getattr(parent, maker)()
        elif isinstance(parent, polymorphic_function.Function):
            name, held = label.partition(".")[0], self._held_before.get(key, {})
            instances = _instances(name, parent)
            if len(instances) > 1:
                instances = [each for each in instances if _agree(held, self._held_by(each))]
            if len(instances) == 1:
                getattr(instances[0], name)
        return self._births.find(key)

    def _build(self, owner: Any, call: dict[str, Any]) -> None:
        if call.get("strategy") is None:
            self._build_in_scope(owner, call)
            return
        with self._calls.recall({"key": call["strategy"]}).scope():  # whose variables and slots are all of one kind
            self._build_in_scope(owner, call)

    def _build_in_scope(self, owner: Any, call: dict[str, Any]) -> None:
        args, kwargs = self._calls.recall_arguments(call)
        if isinstance(owner, MethodType):
            owner(*args, **kwargs)
            return
        if isinstance(owner, polymorphic_function.Function):
            # Where the first value of a variable is drawn in the function, it cannot be had outside; a later one is restored.
            with contextlib.suppress(lift_to_graph.UnliftableError), self._as_compiled(owner), _in_keras_at(call.get("scope")):
                owner.get_concrete_function(*args, **kwargs)
            return
        if isinstance(owner, self._optimizer_types):
            with self._building.unit(self._births.key(owner) or "", lambda: None), tf.name_scope(call["scope"] or ""):
                owner.build(*args)
            return
        if isinstance(owner, self._layer_2_types):
            self._call_on_placeholders(owner, owner, args, kwargs, call["scope"])
            return
        import keras

        if isinstance(owner, keras.Layer) and owner._parent_path is None:
            owner._parent_path = call.get("scope")  # its variables are named after it, and slots after these
        self._call_on_placeholders(owner, owner.build if isinstance(owner, keras.Metric) else owner, args, kwargs, call["scope"])

    def _as_compiled(self, function: Any) -> AbstractContextManager[None]:
        """Have a model of Keras 2 train what it was compiled to train, as its own methods do around its training function."""
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


def _path_in_keras() -> str | None:
    """Return the path of the Keras layer that is being called: a function that it calls names after it what it makes."""
    if "keras" not in sys.modules:
        return None
    from keras.src.backend.common.name_scope import current_path

    return current_path() or None


@contextlib.contextmanager
def _in_keras_at(path: str | None) -> Iterator[None]:
    """Be where a Keras layer of this path is called."""
    if not path:
        yield
        return
    from keras.src.backend.common.name_scope import name_scope

    with contextlib.ExitStack() as stack:
        for part in path.split("/"):
            stack.enter_context(name_scope(part, deduplicate=False))
        yield


def _is_of_gradient(frame: FrameType | None) -> bool:
    """Return whether TensorFlow is about to trace a gradient: of a function or loop in one that an eager tape has recorded."""
    while frame is not None:
        if frame.f_code is gradients_util._GradientsHelper.__code__:
            return True
        frame = frame.f_back
    return False


def _has_company() -> bool:
    """Return whether this is one of several replicas of a strategy."""
    return not tf.distribute.in_cross_replica_context() and bool(tf.distribute.get_strategy().num_replicas_in_sync > 1)


def _instances(name: str, function: Any) -> list[Any]:
    """Return the objects alive that have a function as a method with this name."""
    alive = gc.get_objects()
    classes = [each for each in alive if isinstance(each, type)]
    kinds = {id(each) for each in classes if any(vars(base).get(name) is function for base in each.__mro__)}
    return [each for each in alive if id(type(each)) in kinds]


def _agree(was: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether two objects hold the same, as far as both hold anything at one place."""
    common = was.keys() & now.keys()
    return bool(common) and all(was[path] == now[path] for path in common)


class _BuiltAheadError(BaseException):
    """A layer has been built, and need not be called. Keras reports what is an Exception."""


def _placeholder(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensorSpec):
        inner = value._shape[value.ragged_rank + 1 :]
        return tf.compat.v1.ragged.placeholder(value.dtype, value.ragged_rank, inner)
    if isinstance(value, tf.SparseTensorSpec):
        return tf.compat.v1.sparse_placeholder(value.dtype, value.shape)
    return tf.compat.v1.placeholder(value.dtype, value.shape) if isinstance(value, tf.TensorSpec) else value


def _function_label(python_function: Any, frame: FrameType | None) -> str:
    """Return a function's name, behind the method of Keras that makes it where one does."""
    name = getattr(python_function, "__name__", "function")
    while frame is not None:
        if frame.f_code.co_name in _MAKERS:
            return f"{frame.f_code.co_name} {name}"
        frame = frame.f_back
    return str(name)
