"""The adapter for TensorFlow 2.21 and Keras 3.

Variables are seen when they are made (weak references), named by `Births`, read without a copy, and set again, those that
are made lazily at the moment of their creation. Private parts of TensorFlow are used: the version range is pinned and checked here.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import json
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import StrategyBase
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import data_flow_ops, gen_resource_variable_ops, resource_variable_ops, variables
from tensorflow.python.trackable import data_structures

from detrain.adapters.api import Settings, Watched
from detrain.adapters.lazy_building import Building, Unit
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow import composite_tensors as composites
from detrain.adapters.tensorflow.data.datasets import ITERATORS, Datasets
from detrain.adapters.tensorflow.data.file_contents import watch_contents
from detrain.adapters.tensorflow.data.file_questions import watch_files
from detrain.adapters.tensorflow.data.iterator_positions import NoPosition
from detrain.adapters.tensorflow.faults.instruments import Instruments
from detrain.adapters.tensorflow.guard.gradient_norms import Gradients
from detrain.adapters.tensorflow.guard.held_state import Moments
from detrain.adapters.tensorflow.hidden import HIDDEN
from detrain.adapters.tensorflow.keras import config_objects
from detrain.adapters.tensorflow.keras.fit import FIT, Fit, is_of_fit
from detrain.adapters.tensorflow.keras.loop_changes import watch_frozen, watch_sets
from detrain.adapters.tensorflow.keras.loop_metrics import METRIC, metric_parts, remake_metric
from detrain.adapters.tensorflow.keras.loop_models import MADE, Made
from detrain.adapters.tensorflow.keras.state import Keras2State, KerasState
from detrain.adapters.tensorflow.keras.weights_files import KerasWeights
from detrain.adapters.tensorflow.lookup_tables import Tables, is_of_table
from detrain.adapters.tensorflow.op_order import settle_order
from detrain.adapters.tensorflow.random_ops import RandomCounters
from detrain.adapters.tensorflow.refusals import refuse_fit, refuse_unseen
from detrain.adapters.tensorflow.summary_writers import Summaries
from detrain.adapters.tensorflow.tensors import NO_NUMBERS, array_of, new_array, read_each, taken_over
from detrain.adapters.tensorflow.timestamp import settle_clock
from detrain.adapters.tensorflow.tracebacks import hide_in, hide_own_frames
from detrain.adapters.tensorflow.tracing.builder import FUNCTION, Builder
from detrain.adapters.tensorflow.updates import Updates
from detrain.base import VERSION
from detrain.base.config import Mode
from detrain.base.digest import Array
from detrain.base.errors import Diverged, FrameworkUnsupported
from detrain.python.inspect.frames import user_frames
from detrain.python.process.random_streams import Held, PythonStream, RngState, Stream, Streams
from detrain.store.weights_file import WeightsFile

_FLOAT: Final = "float"
"""Stands, in a state, before the text of a number that is not finite."""
_SUPPORTED: Final = ((2, 21), (2, 22))
_SEED: Final = "global seed"
_RESOURCE, _VARIANT, _STRING = tf.resource, tf.variant, tf.string
_FLAGS: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "jit": (tf.config.optimizer.get_jit, lambda value: tf.config.optimizer.set_jit(value or False)),
    "options": (tf.config.optimizer.get_experimental_options, tf.config.optimizer.set_experimental_options),
    "soft placement": (tf.config.get_soft_device_placement, tf.config.set_soft_device_placement),
    "functions run eagerly": (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    "tensor float 32": (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    _SEED: (lambda: context.context()._seed, lambda seed: setattr(context.context(), "_seed", seed)),
}
"""What a program may set for all of TensorFlow, and its loop may change."""


class TensorFlow:
    """State of TensorFlow and Keras. Make it right after TensorFlow was imported, before the program uses it."""

    name = "tensorflow"
    constant_type = EagerTensor
    on_functions = frozenset({"ag_dnc_wrapper__"})
    """`tf.numpy_function` and its like keep what they have made of a function there."""

    def __init__(self, settings: Settings, streams: Streams) -> None:
        version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        if not _SUPPORTED[0] <= version < _SUPPORTED[1]:
            raise FrameworkUnsupported(
                f"TensorFlow {tf.__version__} is not supported: this detrain knows 2.21",
                "install tensorflow>=2.21,<2.22 (the extra `detrain[tensorflow]`)",
            )
        hide_own_frames()
        self._births = Births()
        self._building = Building(streams)
        self._building.unchanged = settings.unchanged
        self._building.seed = _FLAGS[_SEED]
        if settings.probes is not None:
            self._building.refuse = settings.probes.fail
        self._births.is_building = lambda: self._building.is_inside
        self._births.moment = settings.moment
        self._variables: dict[str, weakref.ref[Any]] = {}
        self._handles: dict[int, str] = {}
        self._pending: dict[str, Array] = {}
        self._strays: list[str] = []
        self._probes = settings.probes
        self._fit = Fit(settings.probes)
        self._keras: KerasState | None = None
        self._keras_2: Keras2State | None = None
        self._made: Made | None = None
        self._weights: KerasWeights | None = None
        self._holder_types: tuple[type, ...] = (tf.train.CheckpointManager,)
        self._model_types: tuple[type, ...] = (tf.Module,)
        self._container_types: tuple[type, ...] = (
            data_structures.ListWrapper,
            data_structures._DictWrapper,
            data_structures._TupleWrapper,
        )
        self._settle(settings)
        self._watch_variables()
        for cls in (tf.train.ExponentialMovingAverage, tf.train.Checkpoint, StrategyBase):
            self._watch_class(cls)
        self._summaries = Summaries(self._births)
        self._builder = Builder(self._births, self._building, self._summaries)
        self._queues: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watch_queues()
        self._tables = Tables(self._births)
        self._random = RandomCounters(self._births)
        self._datasets = datasets = Datasets(self._births, is_of_fit, self._fit.source)
        self._moments = moments = Moments(self._births, self._building, self._alive, self._random.eager, datasets)
        self.hold, self.put_back, self.release = moments.hold, moments.put_back, moments.release
        self.begin_load, self.end_load, self.load_again = moments.begin_load, moments.end_load, moments.load_again
        datasets.watch(moments.iterators, moments.pulls, settings.elements, getattr(settings.probes, "fail", None))
        self.called = datasets.called
        self.loader_key = datasets.loader_key
        self._updates = Updates(settings.on_update, settings.on_assign, moments.inside.note_written)
        self._gradients: Gradients | None = None
        self._watched: tuple[object, list[Watched]] = (None, [])
        self._instruments = None
        if settings.experiment is not None:
            self._instruments = Instruments(settings.experiment.plans)
            settings.experiment.attach(self._instruments)

    def beyond_recall(self) -> list[str]:
        """Return, in words, what steps move on that `put_back` cannot put back."""
        kept_masks = [mask for keras in (self._keras, self._keras_2) if keras is not None for mask in keras.kept_masks()]
        return [*self._datasets.beyond_recall(), *kept_masks, *self._moments.set_by_loaders]

    def watch_gradients(self) -> None:
        """Have the norms of gradients among what is watched."""
        self._gradients = Gradients(self._births)
        if self._keras is not None:
            self._gradients.on_keras()

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched for hardware faults, and the Euclidean norms [variable]."""
        watched, found = self._moments.norms()
        if self._gradients is None or not self._gradients.watched:
            return watched, found
        before, together = self._watched
        if before is not watched or len(together) != len(watched) + len(self._gradients.watched):
            self._watched = watched, [*watched, *self._gradients.watched]
        return self._watched[1], np.concatenate([found, self._gradients.norms()])

    def streams(self) -> dict[str, Stream]:
        """Return the eager context's generator, from which TensorFlow draws the seeds of eager random ops."""
        return {"tensorflow": _ContextStream()}

    def held_generator(self, value: object) -> Held | None:
        """Return a `tf.random.Generator` as a stream, None for all other objects."""
        is_plain = isinstance(value, tf.random.Generator) and isinstance(value.state, resource_variable_ops.BaseResourceVariable)
        return _HeldGenerator(value) if is_plain else None

    def tensors(self) -> dict[str, Array]:
        """Return variable values (axes as in TensorFlow), those still waiting for their variable included."""
        # The variable that takes over the memory of a value that waits may come while what is returned here is being written.
        values = {key: np.array(array) for key, array in self._pending.items()}
        values.update(read_each(self._alive()))
        values.update(self._tables.arrays())
        return values

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array for `restore`, to be filled."""
        return new_array(shape, dtype)

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set the variables; a value whose variable does not exist yet waits for it."""
        alive = self._alive()
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
            if f"{key}/save_counter" in self._pending:  # it makes that as it is first saved, or asked for it
                _ = checkpoint.save_counter  # type: ignore[attr-defined]
        self._tables.restore(of_tables)

    def unclaimed(self) -> list[str]:
        """Return the variables made in place of those that the first run had before the cut, but without their values."""
        if any(key in self._alive() for key in self._strays):
            gc.collect()  # what a layer makes in its call, and nobody holds
        return [key for key in self._strays if key in self._alive()]

    def counters(self) -> bytes:
        """Return the counts of births at the top, what shuffled sets have given as seeds, and how far iterators alive have come."""
        state = {
            "births": self._births.top_counts(),
            "going on": self._births.going_on(),
            "made again": self._builder.made_again(),
            "built": msgspec.to_builtins(self._building.units()),
            "traced by": self._traced_by(),
            **self._datasets.counters(),
            "fit": self._fit.state(),
            "keras": None if self._keras is None else self._keras.state(),
            "keras 2": None if self._keras_2 is None else self._keras_2.state(),
            "draws": self._random.eager.state()[1],
            "made": [] if self._made is None else self._made.described(),
            "flags": {name: get() for name, (get, _set) in _FLAGS.items()},
            **self._summaries.state(),
        }
        return json.dumps(_finite(state), sort_keys=True).encode()

    def _traced_by(self) -> list[str]:
        """Return what decides, besides the program, what is in a trace; nothing if sites of faults are put into it."""
        if self._instruments is not None:
            return []
        gradients = "with norms of gradients" if self._gradients is not None else "plain"
        return [VERSION, tf.__version__, _version_of_keras(), gradients, "wired"]

    def weights_files(self) -> dict[str, WeightsFile]:
        """Return what Keras's weights file of each model alive would hold, by the model's key."""
        return {} if self._weights is None else self._weights.files()

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of loaders alive as data, and why others have none."""
        found, reasons = self._datasets.positions(mode)
        try:
            fit = None if mode == "forward" else self._fit.position(self._datasets.read_with, is_forced=mode == "seek")
        except NoPosition as reason:
            return found, [*reasons, str(reason)]
        return found if fit is None else found | {FIT: fit}, reasons

    def set_counters(self, counters: bytes, positions: Mapping[str, Array], mode: Mode) -> None:
        """Set the counts, and the seeds that shuffled sets give next; bring the iterators that live on to their positions."""
        state = json.loads(counters, object_hook=_as_it_was)
        units = msgspec.convert(state["built"], list[Unit])
        traced_by = self._traced_by()
        if not traced_by or state.get("traced by") != traced_by:
            units = [msgspec.structs.replace(unit, forms=()) for unit in units]
        units, made = self._building.begin_restore(units), state.get("made", [])
        if self._made is not None:
            self._made.remake(made)
        self._builder.build_ahead(units)
        self._builder.make_again(state.get("made again", {}))
        position = None if mode == "forward" else positions.get(FIT)
        self._fit.restore(state["fit"], self._datasets.set_seeds, position, state["seeds"])
        self._datasets.restore(state, positions, mode, self._fit.source())
        self._births.set_top_counts(state["births"])
        self._births.set_going_on(state.get("going on", {}))
        if self._keras is not None and state.get("keras") is not None:
            self._keras.restore(state["keras"], self._made.again if self._made is not None else frozenset())
        if self._keras_2 is not None and state.get("keras 2") is not None:
            self._keras_2.restore(state["keras 2"])
        self._random.eager.restore(state.get("draws", {}))
        for name, value in state.get("flags", {}).items():
            get, set_flag = _FLAGS[name]
            if get() != value:
                set_flag(value)
        self._summaries.restore(state)

    def build_made(self) -> None:
        """Build what the first run had built by functions that the loop had made, once these are there again."""
        self._builder.build_made()
        if self._made is not None:
            self._made.finish()
            self._made.check(lambda key: key not in self._pending and key not in self._strays)

    def to_array(self, value: object) -> Array | None:
        """Return the value of an eager tensor, a variable, or the parts of a sparse, ragged or distributed one; else None.

        It may share memory.
        """
        if type(value) is EagerTensor:
            return self.constant(value)
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor | PerReplica):
            parts = [array_of(tf.convert_to_tensor(part)).reshape(-1) for part in tf.nest.flatten(value, expand_composites=True)]
            return np.concatenate([part.astype(np.float64) for part in parts]) if parts else None
        if isinstance(value, tf.Variable):
            return read_each({"": value}).get("")
        return None

    def constant(self, value: object) -> Array | None:
        """Return the value of an eager tensor of numbers or text, in the tensor's own memory; else None."""
        if not isinstance(value, EagerTensor) or (dtype := value.dtype) is _RESOURCE or dtype is _VARIANT:
            return None
        try:
            return np.asarray(value._numpy(), object if dtype is _STRING else None)  # NumPy's texts lose trailing zeros
        except tf.errors.UnimplementedError:  # a tensor that is sharded over devices: it has no value in one place
            return None

    def make_constant(self, array: Array) -> object:
        """Return an eager tensor."""
        return tf.constant(array, tf.string if array.dtype == object else None)

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return what a sparse or ragged tensor, indexed slices, a `TensorArray` are made of; None for most else.

        Compiled methods and metrics are described, too, if the loop has made them.
        """
        made_of = self._builder.function_parts(value)
        if made_of is not None:
            return FUNCTION, made_of
        made_of = None if self._builder.holds_metrics else metric_parts(self._births, value)
        return composites.parts(value) if made_of is None else (METRIC, made_of)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Return what an iterator over a tf.data set is made of; of what is in a model that the loop has made, its key."""
        key = None if self._made is None else self._made.part(value)
        return self._datasets.parts(value) if key is None else (MADE, [key])

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return what `parts` or `parts_of_new` described."""
        if kind in ITERATORS:
            return self._datasets.remake(kind, *parts)
        if kind == FUNCTION:
            return self._builder.remake_function(*parts)
        if kind == MADE:
            return self._births.find(*parts)
        if kind == METRIC:
            return remake_metric(self._births, *parts)
        made: object | None = composites.remake(kind, parts, current)
        return made

    def describe_variable(self, value: object) -> list[str | bool] | None:
        """Return (key, whose it is, whether it is trainable, its name) of a variable of TensorFlow or Keras."""
        key = self._builder.variable_key(value)
        if key is None:
            return None
        owner, name = "tensorflow" if isinstance(value, tf.Variable) else "keras", str(value.name)  # type: ignore[attr-defined]
        return [key, owner, bool(getattr(value, "trainable", True)), name]

    def find_variable(self, described: list[str | bool], *, makes: bool) -> object | None:
        """Return the variable. If `makes`, one of TensorFlow that the loop made is made again, with the checkpoint's value."""
        key, owner, is_trainable, name = str(described[0]), described[1], bool(described[2]), str(described[3])
        if owner == "keras":
            keras_variable: object | None = self._builder.keras_variable(key)
            return keras_variable
        found = self._births.find(key)
        if found is None and makes and key in self._pending:
            with self._births.naming(key):
                # Slots of optimizers are named after it.
                found = tf.Variable(self._pending[key], trainable=is_trainable, name=name.partition(":")[0] or None)
        return found

    def is_holder(self, value: object) -> bool:
        """Return whether an object only holds data: a callback (any loop may call it), a bar, files listed, words counted."""
        return isinstance(value, self._holder_types)

    def holds_variables(self, value: object) -> bool:
        """Return whether an object is a model, layer, optimizer, metric or module."""
        return isinstance(value, self._model_types)

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object, and that not as it built something."""
        return self._births.is_of_loop(value)

    def is_spent(self, value: object) -> bool:
        """Return whether an object is a tape that has given its gradients."""
        return isinstance(value, tf.GradientTape) and value._tape is None and not value._recording

    def begin_phase(self) -> None:
        """Note what models consist of, and forget what was left before: each process comes by there."""
        self._builder.is_in_loop = True
        self._births.begin_loop(next(iter(user_frames(sys._getframe())), None))
        self._datasets.begin_phase()
        for keras in (self._keras, self._keras_2):
            if keras is not None:
                keras.begin_phase()

    def end_phase(self) -> None:
        """The training loop has been left."""
        self._births.end_loop()

    def is_loader(self, value: object) -> bool:
        """Return whether an object is a tf.data iterator that is counted, or a generator that `fit` trains on."""
        return self._datasets.is_counted(value) or self._fit.is_loader(value)

    def is_container(self, value: object) -> bool:
        """Return whether an object is what a model or module makes of a list, dict, set or tuple that is assigned to it."""
        return type(value) in self._container_types

    def not_captured(self) -> list[str]:
        """Return variables that hold no numbers, orders of sets that are lost, and models that have come to hold other things."""
        found = [
            f"{key} (a variable of {variable.dtype.name})"
            for key, variable in self._alive().items()
            if variable.dtype in NO_NUMBERS
        ]
        found += [f"{queue.name} (a tf.queue with elements)" for queue in self._queues if queue.size() > 0]
        for keras in (self._keras, self._keras_2):
            found += keras.not_captured() if keras is not None else []
        return found + self._fit.not_captured() + self._datasets.not_captured() + self._random.not_captured()

    def flush(self) -> None:
        """Flush every summary writer; a resumed run does not write again what lies before its cut."""
        self._summaries.flush()

    def refetch(self, item: object, fetched: Sequence[list[Array]]) -> object | None:
        """Return a step of `fit` that fetches these batches."""
        counts = self._births.top_counts()
        try:
            with self._building.not_noted():
                return self._fit.refetch(item, fetched)
        finally:
            self._births.set_top_counts(counts)  # what is made for it must not shift the names of what the program makes

    def is_pure(self, loader: object) -> bool:
        """Return whether a loader runs no Python of the program."""
        return self._fit.is_pure(loader) or self._moments.is_pure(loader)

    def environment(self) -> dict[str, str]:
        """Return versions, devices and the settings that change bits."""
        return {
            "devices": ", ".join(f"{d.device_type}:{d.name.rsplit(':', 1)[1]}" for d in tf.config.list_logical_devices()),
            "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
        }

    def _settle(self, settings: Settings) -> None:
        tf.random.set_seed(settings.seed)
        tf.config.experimental.enable_op_determinism()
        settle_clock()
        settle_order()
        if settings.answers is not None:
            watch_files(settings.answers)
        if settings.contents is not None:
            watch_contents(settings.contents)
        if settings.probes is not None:
            refuse_unseen(settings.probes)
        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)

    def _alive(self) -> dict[str, Any]:
        found = {}
        for key, reference in list(self._variables.items()):
            variable = reference()
            if variable is None:
                del self._variables[key]
            else:
                found[key] = variable
        return found

    def _watch_variables(self) -> None:
        """See every variable when its construction is complete: inside, initial values are assigned at several moments."""
        metaclass = variables.VariableMetaclass
        original = metaclass.__call__

        @functools.wraps(original)
        def constructed(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, *args, **kwargs)
            if isinstance(made, resource_variable_ops.BaseResourceVariable):
                self._on_variable(made)
            return made

        metaclass.__call__ = constructed

    def _on_variable(self, variable: Any) -> None:
        if isinstance(variable, resource_variable_ops._UnreadVariable) or variable._in_graph_mode:
            return
        identity = id(variable.handle)
        if identity in self._handles:  # the outer of nested constructor calls, or another Python object for a known variable
            return
        # Without its scopes: in a graph, where layers are built ahead, TensorFlow makes these unique (`dense_1_1`).
        label = str(variable.name).partition(":")[0].rpartition("/")[2]
        if label == HIDDEN or self._births.is_aside:
            return
        key = self._births.register(variable, label, sys._getframe(2))
        self._handles[identity] = key
        weakref.finalize(variable.handle, self._handles.pop, identity, None)
        self._variables[key] = weakref.ref(variable, self._moments.on_change)
        if self._weights is not None:
            self._weights.on_variable()
        self._moments.on_change()
        if self._births.is_apart:
            return
        if key in self._pending:
            with tf.init_scope():
                _assign(key, variable, self._pending.pop(key))
        elif self._building.is_again:
            self._strays.append(key)

    def _variable(self, key: str) -> object | None:
        found: object | None = self._builder.keras_variable(key)
        return self._births.find(key) if found is None else found

    def _owners(self) -> set[str]:
        return {unit.owner for unit in self._building.units()}

    def _rename(self, value: Any, key: str | None) -> None:
        """Give what has been made again the key that it had in the first run."""
        variable = getattr(value, "_value", value)
        if not isinstance(variable, resource_variable_ops.BaseResourceVariable):
            self._births.rename(value, key)
            return
        before = self._handles.pop(id(variable.handle))
        self._variables.pop(before, None)
        self._births.rename(variable, key)
        self._builder.rename_variable(before, key)
        if key is not None:
            self._handles[id(variable.handle)] = key
            self._variables[key] = weakref.ref(variable, self._moments.on_change)
            if key in self._pending:
                _assign(key, variable, self._pending.pop(key))
            else:
                self._strays.append(key)  # until its value is restored
        self._moments.on_change()

    def _watch_class(self, cls: Any) -> None:
        births = self._births
        original = cls.__init__

        @functools.wraps(original)
        def watched(self: Any, *args: Any, **kwargs: Any) -> None:
            births.register(self, type(self).__name__, sys._getframe(1))
            original(self, *args, **kwargs)

        cls.__init__ = watched

    def on_import(self, module: str) -> None:
        """Name Keras's objects from the moment Keras is there."""
        if module == "tf_keras":
            self._on_keras_2()
        if module != "keras":
            return
        import keras
        from keras.src.legacy.preprocessing.image import Iterator
        from keras.src.legacy.preprocessing.text import Tokenizer
        from keras.src.ops.operation import Operation
        from keras.src.saving import saving_lib
        from keras.src.utils import traceback_utils, tracking

        hide_in(traceback_utils)
        self._weights = weights = KerasWeights(self._births, self._builder.variable_key)
        for cls in (keras.optimizers.Optimizer, keras.metrics.Metric, keras.random.SeedGenerator):
            self._watch_class(cls)
        self._keras = self._builder.keras_states["keras"] = KerasState(self._births, self._builder.keras_variables)
        self._made = Made(self._births, self._rename, self._building.settle, self._variable, self._owners)
        without_variables = config_objects.classes_of(keras)
        config_objects.watch_births(self._births, without_variables)
        sets = (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, *without_variables)
        watch_sets(self._moments.note_set, sets)
        watch_frozen(self._moments.note_set)
        if self._gradients is not None:
            self._gradients.on_keras()
        callbacks = (keras.callbacks.Callback, keras.callbacks.CallbackList)
        self._holder_types += (*callbacks, keras.utils.Progbar, Iterator, Tokenizer)
        self._model_types += (Operation, keras.optimizers.Optimizer, keras.metrics.Metric)
        _make_monitors_repeatable()
        self._container_types += (tracking.TrackedList, tracking.TrackedDict, tracking.TrackedOrderedDict, tracking.TrackedSet)
        births = self._births
        original = Operation.__new__

        @functools.wraps(original)
        def layer_made(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, *args, **kwargs)
            births.register(made, cls.__name__, sys._getframe(1))
            weights.on_object(made)
            return made

        Operation.__new__ = staticmethod(layer_made)
        # To save, or load, makes an object of each class in the model, and asks for the names of its attributes.
        saving_lib.get_attr_skipset = births.aside()(saving_lib.get_attr_skipset)
        self._builder.watch_keras()
        self._updates.on_keras()
        self._fit.watch()
        if self._instruments is not None:
            self._instruments.on_keras()

    def _on_keras_2(self) -> None:
        import tf_keras
        from tf_keras.src.utils import traceback_utils

        hide_in(traceback_utils)
        if self._probes is not None:
            refuse_fit(self._probes)
        classes = (tf_keras.layers.Layer, tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
        for cls in classes:
            self._watch_class(cls)
        without_variables = config_objects.classes_of(tf_keras)
        config_objects.watch_births(self._births, without_variables)
        watch_sets(self._moments.note_set, (*classes, *without_variables, tf_keras.src.backend.RandomGenerator))
        self._builder.watch_keras_2()
        self._keras_2 = self._builder.keras_states["keras 2"] = Keras2State(self._births)
        if self._instruments is not None:
            self._instruments.on_keras_2()

    def _watch_queues(self) -> None:
        """See each queue, whose elements lie in TensorFlow."""
        original = data_flow_ops.QueueBase.__init__

        @functools.wraps(original)
        def queue_made(queue: Any, *args: Any, **kwargs: Any) -> None:
            original(queue, *args, **kwargs)
            if context.executing_eagerly():
                self._queues.add(queue)

        data_flow_ops.QueueBase.__init__ = queue_made


def _make_monitors_repeatable() -> None:
    """Have callbacks that monitor a value look for their comparison anew in a resumed process, which finds `min_delta` as it was.

    Where less is better they turn its sign around when they look; it is positive before.
    """
    from keras.src.callbacks.monitor_callback import MonitorCallback

    original = MonitorCallback._set_monitor_op

    @functools.wraps(original)
    def look(callback: Any) -> None:
        callback.min_delta = abs(callback.min_delta)
        original(callback)

    MonitorCallback._set_monitor_op = look


def _finite(value: Any) -> Any:
    """Return a state as JSON can have it: infinities and what is not a number are no JSON (RFC 8259), which readers refuse."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _as_it_was(value: dict[str, Any]) -> Any:
    return float(value[_FLOAT]) if value.keys() == {_FLOAT} else value


@functools.cache  # reading it takes half a millisecond, which is a tenth of a small checkpoint
def _version_of_keras() -> str:
    return importlib.metadata.version("keras")


class _HeldGenerator:
    """A `tf.random.Generator`: its state, as long as one device holds it."""

    def __init__(self, source: tf.random.Generator) -> None:
        self._source = source

    def pack(self) -> bytes:
        return bytes(self._source.state.numpy().tobytes())

    def unpack(self, packed: bytes) -> None:
        self._source.state.assign(np.frombuffer(packed, self._source.state.dtype.as_numpy_dtype))


class _ContextStream:
    """The eager context's `random.Random`, which exists once a global seed is set."""

    def get(self) -> RngState:
        return PythonStream(context.context()._rng).get()

    def set(self, state: RngState) -> None:
        PythonStream(context.context()._rng).set(state)


def _assign(key: str, variable: Any, array: Array) -> None:
    if not variable.shape.is_compatible_with(array.shape) or variable.dtype.as_numpy_dtype != array.dtype.type:
        raise Diverged(
            f"variable {key!r} is {variable.dtype.name}{list(variable.shape)}, the checkpoint has {array.dtype}{list(array.shape)}",
            "the program makes another model than the first run did; start anew with --fresh",
        )
    with tf.device(variable.handle.device):
        gen_resource_variable_ops.assign_variable_op(variable.handle, taken_over(array, variable.dtype))
