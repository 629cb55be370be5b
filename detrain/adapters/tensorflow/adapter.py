"""The adapter for TensorFlow 2.21, with Keras 3 and Keras 2.

It uses private parts of TensorFlow; so the range of versions is pinned, and `detrain.adapters.registry` checks it. Its
own parts do the work, one for each Protocol of `detrain.adapters.api`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import StrategyBase
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import data_flow_ops, gen_logging_ops

from detrain.adapters.api import Adapter, Settings
from detrain.adapters.lazy_building import Building, BuiltUnit
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data.datasets import Datasets
from detrain.adapters.tensorflow.data.file_contents import watch_contents, watch_files
from detrain.adapters.tensorflow.data.iterator_positions import NoPosition
from detrain.adapters.tensorflow.faults.instruments import TensorFlowInstruments
from detrain.adapters.tensorflow.faults.memory import VariableMemory
from detrain.adapters.tensorflow.guard.norms import TensorFlowNorms
from detrain.adapters.tensorflow.keras.fit import FIT, FitInstrument, is_of_fit
from detrain.adapters.tensorflow.keras.weights_files import KerasWeights
from detrain.adapters.tensorflow.keras_import import Keras, Watchers, watch_class
from detrain.adapters.tensorflow.leaves import TensorFlowLeaves
from detrain.adapters.tensorflow.op_order import fix_order
from detrain.adapters.tensorflow.random.eager_draws import TensorFlowStreams
from detrain.adapters.tensorflow.random.random_counters import RandomCounters
from detrain.adapters.tensorflow.refusals import refuse_unseen
from detrain.adapters.tensorflow.rollback import TensorFlowRollback
from detrain.adapters.tensorflow.rules import TensorFlowRules
from detrain.adapters.tensorflow.summary_writers import Summaries
from detrain.adapters.tensorflow.tracebacks import hide_own_frames
from detrain.adapters.tensorflow.tracing.builder import Builder
from detrain.adapters.tensorflow.updates import TensorFlowUpdates
from detrain.adapters.tensorflow.variables import TensorFlowVariables
from detrain.base import VERSION
from detrain.base.digest import Array
from detrain.base.in_place import in_place_of
from detrain.base.options import Mode
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.hooks import LoaderPositions
from detrain.python.inspect.tracing import add_test
from detrain.python.process.random_streams import Streams

_FLOAT: Final = "float"
"""The key that stands, in a state, before the text of a number that is not finite."""
_SEED: Final = "global seed"
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
"""Settings of all of TensorFlow that a program may change in its loop: how each is read, and how it is set."""


class TensorFlow(Adapter):
    """See `detrain.adapters.api.Adapter`. Make it right after TensorFlow was imported, before the program uses it."""

    name = "tensorflow"
    norms: TensorFlowNorms
    variables: TensorFlowVariables

    def __init__(self, settings: Settings, streams: Streams) -> None:
        hide_own_frames()
        add_test(ops.inside_function)
        self._births = births = Births()
        self._building = building = Building(streams)
        building.unchanged = settings.unchanged
        building.seed = _FLAGS[_SEED]
        if settings.probes is not None:
            building.refuse = settings.probes.fail
        births.is_building = lambda: building.is_inside
        births.moment = settings.moment
        self._fit = FitInstrument(settings.probes)
        self.variables = TensorFlowVariables(births, building, lambda: self._builder)
        self.rules = TensorFlowRules(births)
        self.random = TensorFlowStreams()
        _fix_settings(settings)
        self.variables.watch()
        for cls in (tf.train.ExponentialMovingAverage, tf.train.Checkpoint, StrategyBase):
            watch_class(births, cls)
        self._summaries = Summaries(births)
        self.building = self
        self._builder = Builder(births, building, self._summaries)
        self._queues: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watch_queues()
        self._draws = RandomCounters(births)
        self._datasets = datasets = Datasets(births, is_of_fit, self._fit.source)
        self.norms = norms = TensorFlowNorms(births, self.variables.alive)
        self.rollback = rollback = TensorFlowRollback(
            births, building, self.variables.alive, self._draws.eager, datasets, self._fit, norms
        )
        self.variables.on_change += (norms.on_change, rollback.on_change)
        datasets.watch(rollback.iterators, rollback.pulls, settings.elements, getattr(settings.probes, "fail", None))
        self.loaders = TensorFlowLoaders(datasets, self._fit)
        updates = TensorFlowUpdates(
            settings.on_update, settings.on_assign, norms.inside.note_written, lambda: self.variables.alive().values()
        )
        self._instruments = None
        if settings.experiment is not None:
            self._instruments = TensorFlowInstruments(settings.experiment, VariableMemory(self.variables, births))
            settings.experiment.attach(self._instruments)
            rollback.is_compared = True
        self._keras = Keras(
            Watchers(
                births=births,
                building=building,
                builder=self._builder,
                variables=self.variables,
                rollback=rollback,
                norms=norms,
                updates=updates,
                rules=self.rules,
                fit=self._fit,
                instruments=self._instruments,
                probes=settings.probes,
            )
        )
        self.leaves = TensorFlowLeaves(births, self._builder, datasets, self._keras)
        rollback.kept_masks = self._keras.kept_masks

    @property
    def weights(self) -> KerasWeights | None:
        """The weights files in Keras's own format; None until Keras is imported."""
        return self._keras.weights

    def on_import(self, module: str) -> None:
        """Begin to name Keras's objects when Keras has been imported."""
        self._keras.on_import(module)

    def state(self) -> bytes:
        """Return, as JSON, the counts that name new objects, how many seeds shuffled sets have given, how far iterators
        are, Keras's state and the global settings.
        """
        state = {
            "births": self._births.top_counts(),
            "going on": self._births.recreated_counts(),
            "made again": self._builder.made_again(),
            "built": msgspec.to_builtins(self._building.units()),
            "traced by": self._traced_by(),
            **self._datasets.counters(),
            "fit": self._fit.state(),
            **self._keras.state(),
            "draws": self._draws.eager.state()[1],
            "flags": {name: get() for name, (get, _set) in _FLAGS.items()},
            **self._summaries.state(),
        }
        return json.dumps(_finite(state), sort_keys=True).encode()

    def _traced_by(self) -> list[str]:
        """Return the versions and settings that shape a trace; nothing if sites of faults are put into traces."""
        if self._instruments is not None:
            return []
        gradients = "with norms of gradients" if self.norms.has_gradients else "plain"
        return [VERSION, tf.__version__, _version_of_keras(), gradients, "wired"]

    def set_state(self, state: bytes, positions: Mapping[str, Array], mode: Mode) -> None:
        """Restore the state that `state` returned: build ahead, set counts and seeds, and set living iterators to their
        positions.
        """
        was = json.loads(state, object_hook=_as_it_was)
        units = msgspec.convert(was["built"], list[BuiltUnit])
        traced_by = self._traced_by()
        if not traced_by or was.get("traced by") != traced_by:
            units = [msgspec.structs.replace(unit, forms=()) for unit in units]
        units = self._building.begin_restore(units)
        self._keras.remake(was.get("made", []))
        self._builder.build_ahead(units)
        self._builder.make_again(was.get("made again", {}))
        position = None if mode == "forward" else positions.get(FIT)
        self._fit.restore(was["fit"], self._datasets.set_given, position, was["seeds"])
        self._datasets.restore(was, positions, mode, self._fit.source())
        self._births.set_top_counts(was["births"])
        self._births.set_recreated_counts(was.get("going on", {}))
        self._keras.restore(was)
        self._draws.eager.restore(was.get("draws", {}))
        for name, value in was.get("flags", {}).items():
            get, set_flag = _FLAGS[name]
            if get() != value:
                set_flag(value)
        self._summaries.restore(was)

    def build_made(self) -> None:
        """Build the first run's units whose functions the loop had made, once these functions exist again."""
        self._builder.build_made()
        self._keras.finish_made()

    def begin_phase(self) -> None:
        """Note the parts of models; forget doubtful orders of shuffled sets from code that each process runs itself."""
        self._builder.is_in_loop = True
        self._births.begin_loop(next(iter(user_frames(sys._getframe())), None))
        self._datasets.begin_phase()
        self._keras.begin_phase()

    def end_phase(self) -> None:
        """Note that the program has left the training loop."""
        self._births.end_loop()

    def uncaptured(self) -> list[str]:
        """Return, in words, the state that no checkpoint holds: variables without numbers, filled queues, lost orders
        of shuffled sets, and models whose parts have changed.
        """
        queues = [f"{queue.name} (a tf.queue with elements)" for queue in self._queues if queue.size() > 0]
        found = [*self.variables.uncaptured(), *queues, *self._keras.uncaptured(), *self._fit.not_captured()]
        return [*found, *self._datasets.not_captured(), *self._draws.not_captured()]

    def flush(self) -> None:
        """Flush every summary writer: a resumed run does not write the summaries before its cut again."""
        self._summaries.flush()

    def environment(self) -> dict[str, str]:
        """Return the devices and the numbers of threads, which change bits."""
        devices = (f"{each.device_type}:{each.name.rsplit(':', 1)[1]}" for each in tf.config.list_logical_devices())
        return {
            "devices": ", ".join(devices),
            "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
        }

    def _watch_queues(self) -> None:
        """Note each eager queue as it is made: TensorFlow holds its elements, out of Python's sight."""
        original = data_flow_ops.QueueBase.__init__

        @in_place_of(data_flow_ops.QueueBase, "__init__")
        def queue_made(queue: Any, *args: Any, **kwargs: Any) -> None:
            original(queue, *args, **kwargs)
            if context.executing_eagerly():
                self._queues.add(queue)


def _fix_settings(settings: Settings) -> None:
    """Fix the settings that decide about bits: seed, deterministic ops, order of ops, number of threads."""
    tf.random.set_seed(settings.seed)
    tf.config.experimental.enable_op_determinism()
    _fix_clock()
    fix_order()
    if settings.contents is not None:
        watch_contents(settings.contents)
    if settings.answers is not None:  # last: what is not done again is no change
        watch_files(settings.answers)
    if settings.probes is not None:
        refuse_unseen(settings.probes)
    tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    tf.config.threading.set_inter_op_parallelism_threads(settings.threads)


def _fix_clock() -> None:
    """Have `tf.timestamp` take its time from Python: at once, or in a traced function each time that it runs.

    TensorFlow refuses `tf.timestamp` beside deterministic ops, though most programs only print it in a log.
    """

    @in_place_of(gen_logging_ops, "timestamp", tf, tf.compat.v1, tf.compat.v2)
    def timestamp(name: str | None = None) -> Any:
        if tf.executing_eagerly():
            return tf.constant(time.time(), tf.float64)
        now = tf.numpy_function(time.time, [], tf.float64, name=name)
        now.set_shape([])
        return now


def _finite(value: Any) -> Any:
    """Return a state that JSON can hold: infinities and NaN are no JSON (RFC 8259), and readers refuse them."""
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


class TensorFlowLoaders(LoaderPositions):
    """The positions of the program's loaders: iterators over tf.data sets, and the data of a running `fit`. A loader
    without a position is drawn from as often again.
    """

    def __init__(self, datasets: Datasets, fit: FitInstrument) -> None:
        self._datasets, self._fit = datasets, fit

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of living loaders as data, and the reasons why others have none."""
        found, reasons = self._datasets.positions(mode)
        try:
            fit = None if mode == "forward" else self._fit.position(self._datasets.read_with, is_forced=mode == "seek")
        except NoPosition as reason:
            return found, [*reasons, str(reason)]
        return found if fit is None else found | {FIT: fit}, reasons

    def is_loader(self, value: object) -> bool:
        """Return whether an object is a counted tf.data iterator, or a generator that `fit` trains on."""
        return self._datasets.is_counted(value) or self._fit.is_loader(value)

    def loader_key(self, loader: object) -> str:
        """Return the name of an iterator over a tf.data set; empty for any other object."""
        return self._datasets.loader_key(loader)

    def called(self) -> Mapping[str, object]:
        """Return the Python objects that living pipelines call, by their keys."""
        return self._datasets.called()
