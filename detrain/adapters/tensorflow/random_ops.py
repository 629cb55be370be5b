"""Stateful random ops of traced functions, lifted to stateless ops on counters that a checkpoint holds.

The state of TensorFlow's stateful random ops lives in C++ kernels that Python can neither read nor set. Each such op in a traced
function becomes its stateless twin, seeded by (the op's own seeds, a counter), and the counter, a variable, goes up by one each
time the op runs. Counters are found again by (function, turn of the op in its trace), so that retraces share them.

Eager ops mostly draw a seed each from the eager context's generator, which is captured. Those that the program gives a seed go on
in one kernel, whose state is how much it has drawn: that is counted, and drawn again where the kernel is new. The functions of
tf.data stay as they are: every iterator starts their kernels anew, and prefetching makes a counter's value at a cut meaningless.
Functions that come out of a SavedModel are no longer traced: those that draw are named when they are called.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as sessions
from tensorflow.python.eager import context, lift_to_graph
from tensorflow.python.framework import func_graph, importer, op_def_registry, ops
from tensorflow.python.ops import gen_candidate_sampling_ops, gen_image_ops, gen_nn_ops, gen_random_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model import function_deserialization
from tensorflow.python.saved_model import save as saving
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.tensors import array_of
from detrain.adapters.tensorflow.tracing.builder import BUILDING_GRAPH
from detrain.base.errors import CheckpointDamaged

Draw = Callable[..., Any]


_NOT_LIFTED: Final = (
    (gen_random_ops, ("parameterized_truncated_normal", "random_poisson")),
    (gen_image_ops, ("random_crop", "sample_distorted_bounding_box", "sample_distorted_bounding_box_v2")),
    (gen_nn_ops, ("fractional_avg_pool", "fractional_max_pool")),
    (
        gen_candidate_sampling_ops,
        tuple(
            f"{name}_candidate_sampler"
            for name in ("all", "fixed_unigram", "learned_unigram", "log_uniform", "thread_unsafe_unigram", "uniform")
        ),
    ),
)
"""Random ops that have no stateless twin."""


_NEVER_RUN: Final = re.compile(rf"{re.escape(BUILDING_GRAPH)}|keras_graph|(.*_)?scratch_graph(_\d+)?")
"""Names of graphs. A function that is traced has its own for its graph: one more word here may be a program's."""


_VALUES: Final = ("shape", "num_samples", "minval", "maxval")
"""Arguments whose values decide how much is drawn."""


_MOST_ELEMENTS: Final = 1 << 31
"""Of one draw; a checkpoint that says more is none."""


class EagerDraws:
    """What the kernels of eager random ops have drawn, of those that have more than one draw: the program gives their seeds."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """Draws by (op, seeds, arguments as far as they decide how much is drawn, device), as JSON."""
        self._drawn = 0
        """Draws of all eager random ops."""
        self._from_context: int | None = None
        self._ops: dict[str, Any] = {}
        original_seed, original_set = context.Context._internal_operation_seed, context.Context._set_global_seed

        @functools.wraps(original_seed)
        def operation_seed(runtime: Any) -> int:
            self._from_context = original_seed(runtime)
            return self._from_context

        @functools.wraps(original_set)
        def set_seed(runtime: Any, seed: Any) -> None:
            if seed is None:  # for numbers by chance: those that follow from the run's seed are (ops must have one that repeats)
                return
            original_set(runtime, seed)
            self._counts.clear()  # all kernels are new then

        context.Context._internal_operation_seed = operation_seed
        context.Context._set_global_seed = set_seed

    def watch(self, name: str, op: Any) -> None:
        """Know an op: its calls go through `run`."""
        self._ops[name] = op

    def run(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an op in eager code."""
        drawn = self._ops[name](*args, **kwargs)
        self._drawn += 1
        given = inspect.signature(self._ops[name]).bind(*args, **kwargs).arguments
        seed, seed2 = int(given.get("seed") or 0), int(given.get("seed2") or 0)
        if seed2 == self._from_context:
            self._from_context = None
            return drawn
        size = {key: _decides(key, value) for key, value in given.items() if key not in ("seed", "seed2", "name")}
        device = tf.nest.flatten(drawn)[0].backing_device  # each has a kernel of its own
        key = json.dumps([name, seed, seed2, size, device], sort_keys=True)
        self._counts[key] = self._counts.get(key, 0) + 1
        return drawn

    def state(self) -> tuple[int, dict[str, int]]:
        """Return how many draws there were, and those of kernels that go on."""
        return self._drawn, dict(self._counts)

    def go_back(self, state: tuple[int, dict[str, int]]) -> None:
        """Have the kernels as they were when `state` was taken in this process."""
        if state[0] != self._drawn:
            self._drawn = state[0]
            self._set(state[1])

    def restore(self, counts: Mapping[str, int]) -> None:
        """Have the kernels as those were that had drawn this. Raises CheckpointDamaged for what no run can have drawn."""
        if counts == self._counts:
            return
        try:
            self._set(counts)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, tf.errors.OpError) as error:
            raise CheckpointDamaged(
                f"the checkpoint says of eager random ops what cannot have been drawn: {type(error).__name__}: {error}",
                "give one that detrain has written, or start anew with --fresh",
            ) from error

    def _set(self, counts: Mapping[str, int]) -> None:
        context.context().clear_kernel_cache()
        self._counts = dict(counts)
        with tf.init_scope():
            for key, count in counts.items():
                name, seed, seed2, size, *device = json.loads(key)
                if not isinstance(count, int) or any(_elements(each, value) > _MOST_ELEMENTS for each, value in size.items()):
                    raise ValueError(f"{count!r} draws of {name} of {str(size)[:200]}")
                with tf.device(device[0] if device else None):
                    arguments = {each: _again(value) for each, value in size.items()}
                    for _ in range(count):
                        self._ops[name](**arguments, seed=seed, seed2=seed2)


def _decides(name: str, value: Any) -> Any:
    """Return what decides how much is drawn: what is no tensor, the value of some that are, of the others their shape and type."""
    if isinstance(value, tf.DType):
        return value.name
    if not isinstance(value, tf.Tensor | tf.Variable | np.ndarray | np.generic):
        return value
    array = array_of(tf.convert_to_tensor(value)) if isinstance(value, tf.Tensor | tf.Variable) else np.asarray(value)
    content = {"value": array.tolist()} if name in _VALUES else {"shape": list(array.shape)}
    return {**content, "dtype": tf.as_dtype(array.dtype).name}


def _elements(name: str, value: Any) -> int:
    """Return how many elements it takes in memory to draw with an argument again, at the least."""
    if not isinstance(value, dict) or name in ("minval", "maxval"):
        return 0
    return math.prod(map(abs, np.ravel(value["value"]).tolist() if "value" in value else value["shape"]))


def _again(value: Any) -> Any:
    """Return an argument with which an op draws as much as with that which `_decides` has seen."""
    if not isinstance(value, dict):
        return value
    return tf.constant(value["value"], value["dtype"]) if "value" in value else tf.ones(value["shape"], value["dtype"])


class RandomCounters:
    """Replaces the stateful random ops while functions are traced."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._counters: dict[str, Any] = {}
        self.eager: Final = EagerDraws()
        self._not_lifted: set[str] = set()
        for name, draw in _STATELESS.items():
            self._lift(name, draw)
        for module, names in _NOT_LIFTED:
            for name in names:
                self._watch_eager(module, name)
        self._watch_ops()
        self._watch_loaded()
        self._watch_saving()
        self._watch_graphs()
        self._watch_first_values()

    def not_captured(self) -> list[str]:
        """Return, in words, the random ops whose state nobody can read."""
        return sorted(self._not_lifted)

    @property
    def count(self) -> int:
        """How many random ops have been lifted."""
        return len(self._counters)

    def _lift(self, name: str, draw: Draw) -> None:
        original = getattr(gen_random_ops, name)

        @functools.wraps(original)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            graph = _traced_function()
            if graph is None:
                return self.eager.run(name, args, kwargs) if context.executing_eagerly() else original(*args, **kwargs)
            seed, seed2 = kwargs.pop("seed", 0), kwargs.pop("seed2", 0)
            op_name = kwargs.pop("name", None)
            counter = self._counter(graph)
            with tf.name_scope(op_name or name):
                turn = counter.assign_add(1, read_value=True)
                first = tf.constant((int(seed) * 0x9E3779B97F4A7C15 + int(seed2)) % (1 << 63), tf.int64)
                return draw(*args, seed=tf.stack([first, tf.cast(turn, tf.int64)]), **kwargs)

        _replace(gen_random_ops, name, lifted)
        self.eager.watch(name, original)

    def _watch_eager(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if _traced_function() is None and context.executing_eagerly() and not name.startswith("learned"):
                return self.eager.run(name, args, kwargs)
            return original(*args, **kwargs)

        _replace(module, name, noted)
        self.eager.watch(name, original)

    def _watch_ops(self) -> None:
        """Name the random ops that come into traced functions and have not been lifted, by whatever way."""
        original = func_graph.FuncGraph._create_op_internal

        @functools.wraps(original)
        def created(graph: Any, op_type: str, *args: Any, **kwargs: Any) -> Any:
            function = _traced_function() if _is_random(op_type) else None
            if function is not None:
                self._not_lifted.add(f"{op_type} in {function.name} (a random op whose state TensorFlow keeps)")
            return original(graph, op_type, *args, **kwargs)

        func_graph.FuncGraph._create_op_internal = created

    def _watch_loaded(self) -> None:
        """See the calls of those functions of SavedModels that draw, from eager code or from functions being traced."""
        original = function_deserialization.load_function_def_library

        @functools.wraps(original)
        def loaded(library: Any, *args: Any, **kwargs: Any) -> Any:
            drawing = _drawing(library)  # loading renames what is in it
            functions = original(library, *args, **kwargs)
            for name in drawing:
                functions[name]._call_flat = self._named_call(name, functions[name]._call_flat)
            return functions

        function_deserialization.load_function_def_library = loaded

    def _watch_graphs(self) -> None:
        """See sessions on graphs that draw, and graphs that draw which are imported into functions."""
        original_run, original_import = sessions.BaseSession.run, importer.import_graph_def

        @functools.wraps(original_run)
        def run(session: Any, *args: Any, **kwargs: Any) -> Any:
            if _draws_in(session.graph, session.graph.version):
                self._not_lifted.add("the random ops of a session of TensorFlow 1")
            return original_run(session, *args, **kwargs)

        @functools.wraps(original_import)
        def import_graph_def(graph_def: Any, *args: Any, **kwargs: Any) -> Any:
            if ops.inside_function() and any(_is_random(node.op) for node in graph_def.node):
                self._not_lifted.add("the random ops of a graph that is imported (import_graph_def)")
            return original_import(graph_def, *args, **kwargs)

        sessions.BaseSession.run = run
        for module in (importer, tf, tf.graph_util, tf.compat.v1, tf.compat.v1.graph_util):
            if hasattr(module, "import_graph_def"):
                module.import_graph_def = import_graph_def

    def _watch_saving(self) -> None:
        """Have a SavedModel hold the counters, without which TensorFlow refuses to save functions that use them."""
        original = saving._AugmentedGraphView.set_signature

        @functools.wraps(original)
        def set_signature(view: Any, *args: Any, **kwargs: Any) -> None:
            original(view, *args, **kwargs)
            view._breadth_first_traversal()  # traces the functions that are to be saved and have never been called
            if self._counters:
                counters = data_structures.wrap_or_unwrap(list(self._counters.values()))
                view._children_cache[view.root]["detrain_random_counters"] = counters

        saving._AugmentedGraphView.set_signature = set_signature

    def _watch_first_values(self) -> None:
        """Let first values of variables that a function draws be drawn outside of it: under XLA TensorFlow has no other way."""
        original = lift_to_graph.lift_to_graph

        @functools.wraps(original)
        def lifted(tensors: Any, graph: Any, *args: Any, op_map: Any = None, **kwargs: Any) -> Any:
            try:
                return original(tensors, graph, *args, op_map=op_map, **kwargs)
            except lift_to_graph.UnliftableError:
                order = None if op_map is None or args or kwargs else self._order(tensors)
                if order is None:
                    raise
            with graph.as_default():
                for op in order:
                    handle = self._handle(op)
                    if handle is None:
                        lift_to_graph._copy_non_source(op, graph, op_map, op.graph)
                    else:
                        op_map[op.outputs[0]] = graph.capture(handle)
                        op_map[op] = op_map[op.outputs[0]].op
            return op_map

        lift_to_graph.lift_to_graph = lifted

    def _order(self, tensors: Any) -> list[Any] | None:
        """Return the operations that such values take, each behind what it takes itself; None if that is more than counters."""
        order, seen = [], set()
        left = [(tensor.op, False) for tensor in tensors]
        while left:
            op, is_ready = left.pop()
            if is_ready:
                order.append(op)
            elif op not in seen:
                seen.add(op)
                if op.type == "Placeholder" and self._handle(op) is None:
                    return None
                before = [*(each.op for each in op.inputs), *op.control_inputs]
                left += [(op, True), *((each, False) for each in before)]
        return order

    def _handle(self, op: Any) -> Any:
        """Return the handle of the counter that a function has taken in as this operation, or None."""
        if op.type != "Placeholder" or not isinstance(op.graph, func_graph.FuncGraph):
            return None
        outer = next((outer for outer, inner in op.graph.captures if inner is op.outputs[0]), None)
        return next((each.handle for each in self._counters.values() if each.handle is outer), None)

    def _named_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def named(*args: Any, **kwargs: Any) -> Any:
            self._not_lifted.add(f"{name} (a function of a SavedModel with random ops, whose state TensorFlow keeps)")
            return call(*args, **kwargs)

        return named

    def _counter(self, graph: Any) -> Any:
        turn = getattr(graph, "detrain_random_ops", 0)
        graph.detrain_random_ops = turn + 1
        key = f"{graph.detrain_function} {turn}"
        if key not in self._counters:
            # Not tf.Variable: that asks the creators of the functions being traced, and a function that is traced again refuses.
            # Named by its key: functions of replicas are traced in threads of their own, where nobody on the stack owns them.
            with tf.init_scope(), self._births.naming(f"{key} random counter"):
                self._counters[key] = ResourceVariable(0, dtype=tf.int64, trainable=False, name=f"random_counter_{turn}")
        return self._counters[key]


def _replace(module: Any, name: str, op: Callable[..., Any]) -> None:
    """Put an op in the place of a module's, and of those of `tf.raw_ops` that are made from it."""
    for holder, held_as, held in functions_of(re.escape(name), module):

        @functools.wraps(held)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        setattr(holder, held_as, replaced)


def functions_of(pattern: str, module: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions for ops in a module, and those made from them in `tf.raw_ops`, also of its APIs for older programs.

    The pattern is that of their names in the module. Each comes with where it is, and its name there.
    """
    modules = (module, tf.raw_ops, tf.compat.v1.raw_ops, tf.compat.v2.raw_ops)
    found = [(each, name, op) for each in modules for name, op in vars(each).items()]
    return [each for each in found if re.fullmatch(pattern, getattr(each[2], "__name__", ""))]


@functools.lru_cache(maxsize=16)
def _draws_in(graph: Any, _version: int) -> bool:
    return any(_is_random(op.type) for op in graph.get_operations())


def _drawing(library: Any) -> set[str]:
    """Return the names of the functions of a library in which there are stateful random ops, or calls of such functions."""
    calls = {function.signature.name: set(_called(function)) for function in library.function}
    found = {name for name, ops_in in calls.items() if any(map(_is_random, ops_in))}
    size = -1
    while size != len(found):
        size = len(found)
        found |= {name for name, ops_in in calls.items() if ops_in & found}
    return found


def _called(function: Any) -> Iterator[str]:
    for node in function.node_def:
        yield node.op
        for value in node.attr.values():
            yield from (each.name for each in (value.func, *value.list.func) if each.name)


@functools.lru_cache(maxsize=4096)
def _is_random(op: str) -> bool:
    definition = op_def_registry.get(op)
    return definition is not None and definition.is_stateful and any(attribute.name == "seed" for attribute in definition.attr)


def _traced_function() -> Any:
    """Return the outermost function graph being traced, or None in eager code and in the functions of tf.data.

    The graph in which a layer is built ahead is none: nothing runs it, and what is traced inside of it was traced in eager code.
    Nor are those in which Keras finds out shapes, as often as it has to: the draws there must not be counted among a function's.
    """
    graph = ops.get_default_graph()
    outermost = None
    while isinstance(graph, func_graph.FuncGraph) and _NEVER_RUN.fullmatch(graph.name) is None:
        outermost = graph
        if str(graph.name).startswith("Dataset_"):
            return None
        graph = graph.outer_graph
    return outermost


def _uniform(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _uniform_int(shape: Any, minval: Any, maxval: Any, seed: Any) -> Any:
    minval = tf.convert_to_tensor(minval)
    return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype=minval.dtype)


def _normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


def _shuffle(value: Any, seed: Any) -> Any:
    return tf.random.experimental.stateless_shuffle(value, seed)


def _categorical(logits: Any, num_samples: Any, output_dtype: Any = tf.int64, *, seed: Any) -> Any:
    return tf.random.stateless_categorical(logits, num_samples, seed, dtype=output_dtype)


def _gamma(shape: Any, alpha: Any, seed: Any) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(alpha)], 0)
    return tf.random.stateless_gamma(full, seed, alpha, dtype=alpha.dtype)


def _poisson(shape: Any, rate: Any, dtype: Any = tf.int64, *, seed: Any) -> Any:
    rate = tf.convert_to_tensor(rate)
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(rate)], 0)
    return tf.random.stateless_poisson(full, seed, rate, dtype=dtype)


_STATELESS: dict[str, Draw] = {
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_shuffle": _shuffle,
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
