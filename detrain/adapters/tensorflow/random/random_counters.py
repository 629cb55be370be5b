"""Stateful random ops in traced functions, replaced by stateless ops on counters that a checkpoint holds.

TensorFlow's stateful random ops keep their state in C++ kernels, where Python can neither read nor set it. Each such op
in a traced function becomes its stateless twin, seeded by (the op's own seeds, a counter); the counter, a variable,
goes up by one each time the op runs. A counter is found again by (function, turn of the op in its trace), so that
retraces share it.

Eager ops are counted (`eager_draws`). The functions of tf.data stay as they are: every iterator starts their kernels
anew, and because of prefetching a counter's value at a cut would mean nothing.

Random ops whose state nobody can read are found as a program comes to run them, to be named beforehand: ops without a
twin in traced functions, and ops that are not traced any more: in functions of a SavedModel, in imported graphs, in
sessions of TensorFlow 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.client import session as sessions
from tensorflow.python.eager import context, lift_to_graph
from tensorflow.python.framework import func_graph, importer, ops
from tensorflow.python.ops import gen_candidate_sampling_ops, gen_image_ops, gen_nn_ops, gen_random_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model import function_deserialization
from tensorflow.python.saved_model import save as saving
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.random.eager_draws import EagerDraws
from detrain.adapters.tensorflow.random.graph_kinds import is_random, replace_op, traced_function
from detrain.base.in_place import in_place_of

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

Draw = Callable[..., Any]


def _uniform(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _uniform_int(shape: Any, minval: Any, maxval: Any, seed: Any) -> Any:
    minval = tf.convert_to_tensor(minval)
    return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype=minval.dtype)


def _normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


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


TWINS: Final[dict[str, Draw]] = {
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_shuffle": tf.random.experimental.stateless_shuffle,
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
"""The stateless twin of each stateful random op, by the op's name in `gen_random_ops`. It draws by a seed that it is
given: other numbers than the stateful op's, but of the same distribution, shape and type."""


class RandomCounters:
    """The counters of random ops, which replace stateful random ops while functions are traced."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._counters: dict[str, Any] = {}
        self.eager: Final = EagerDraws()
        self._kept: Final = KeptByKernels()
        for name, draw in TWINS.items():
            self._lift(name, draw)
        for module, names in _NOT_LIFTED:
            for name in names:
                self._watch_eager(module, name)
        self._watch_saving()
        self._watch_first_values()

    def not_captured(self) -> list[str]:
        """Return, in words, the random ops whose state nobody can read."""
        return self._kept.names()

    def _lift(self, name: str, draw: Draw) -> None:
        original = getattr(gen_random_ops, name)

        @functools.wraps(original)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            graph = traced_function()
            if graph is None:
                return self.eager.run(name, args, kwargs) if context.executing_eagerly() else original(*args, **kwargs)
            seed, seed2 = kwargs.pop("seed", 0), kwargs.pop("seed2", 0)
            op_name = kwargs.pop("name", None)
            counter = self._counter(graph)
            with tf.name_scope(op_name or name):
                turn = counter.assign_add(1, read_value=True)
                first = tf.constant((int(seed) * 0x9E3779B97F4A7C15 + int(seed2)) % (1 << 63), tf.int64)
                return draw(*args, seed=tf.stack([first, tf.cast(turn, tf.int64)]), **kwargs)

        replace_op(gen_random_ops, name, lifted)
        self.eager.watch(name, original)

    def _watch_eager(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if traced_function() is None and context.executing_eagerly() and not name.startswith("learned"):
                return self.eager.run(name, args, kwargs)
            return original(*args, **kwargs)

        replace_op(module, name, noted)
        self.eager.watch(name, original)

    def _watch_saving(self) -> None:
        """Have a SavedModel hold the counters, without which TensorFlow refuses to save functions that use them."""
        original = saving._AugmentedGraphView.set_signature

        @in_place_of(saving._AugmentedGraphView, "set_signature")
        def set_signature(view: Any, *args: Any, **kwargs: Any) -> None:
            original(view, *args, **kwargs)
            view._breadth_first_traversal()  # traces the functions that are to be saved and have never been called
            if self._counters:
                counters = data_structures.wrap_or_unwrap(list(self._counters.values()))
                view._children_cache[view.root]["detrain_random_counters"] = counters

    def _watch_first_values(self) -> None:
        """Have initial values of variables that a function draws be drawn outside of it: XLA allows no other way."""
        original = lift_to_graph.lift_to_graph

        @in_place_of(lift_to_graph, "lift_to_graph")
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

    def _order(self, tensors: Any) -> list[Any] | None:
        """Return the ops that such values need, each after its inputs; None if they need inputs other than counters."""
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
        """Return the handle of the counter that a function has captured as this op, or None."""
        if op.type != "Placeholder" or not isinstance(op.graph, func_graph.FuncGraph):
            return None
        outer = next((outer for outer, inner in op.graph.captures if inner is op.outputs[0]), None)
        return next((each.handle for each in self._counters.values() if each.handle is outer), None)

    def _counter(self, graph: Any) -> Any:
        turn = getattr(graph, "detrain_random_ops", 0)
        graph.detrain_random_ops = turn + 1
        key = f"{graph.detrain_function} {turn}"
        if key not in self._counters:
            # Not tf.Variable: that asks the variable creators of the functions being traced, which refuse if a function
            # is traced again. Named by its key: replicas' functions are traced in threads of their own, with no owner
            # on the stack.
            with tf.init_scope(), self._births.naming(f"{key} random counter"):
                self._counters[key] = ResourceVariable(0, dtype=tf.int64, trainable=False, name=f"random_counter_{turn}")
        return self._counters[key]


class KeptByKernels:
    """The random ops whose state nobody can read, watched from the moment when TensorFlow has been imported."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._watch_ops()
        self._watch_loaded()
        self._watch_graphs()

    def names(self) -> list[str]:
        """Return the ops found so far, in words."""
        return sorted(self._found)

    def _watch_ops(self) -> None:
        """Note the random ops that come into traced functions by any way and have not been lifted."""
        original = func_graph.FuncGraph._create_op_internal

        @in_place_of(func_graph.FuncGraph, "_create_op_internal")
        def created(graph: Any, op_type: str, *args: Any, **kwargs: Any) -> Any:
            function = traced_function() if is_random(op_type) else None
            if function is not None:
                self._found.add(f"{op_type} in {function.name} (a random op whose state TensorFlow keeps)")
            return original(graph, op_type, *args, **kwargs)

    def _watch_loaded(self) -> None:
        """Note calls of SavedModel functions that draw, from eager code or from functions being traced."""
        original = function_deserialization.load_function_def_library

        @in_place_of(function_deserialization, "load_function_def_library")
        def loaded(library: Any, *args: Any, **kwargs: Any) -> Any:
            drawing = _drawing(library)  # before loading, which renames the functions
            functions = original(library, *args, **kwargs)
            for name in drawing:
                functions[name]._call_flat = self._named_call(name, functions[name]._call_flat)
            return functions

    def _watch_graphs(self) -> None:
        """Note sessions on graphs that draw, and graphs that draw and are imported into functions."""
        original_run, original_import = sessions.BaseSession.run, importer.import_graph_def

        @in_place_of(sessions.BaseSession, "run")
        def run(session: Any, *args: Any, **kwargs: Any) -> Any:
            if _draws_in(session.graph, session.graph.version):
                self._found.add("the random ops of a session of TensorFlow 1")
            return original_run(session, *args, **kwargs)

        @in_place_of(importer, "import_graph_def", tf, tf.graph_util, tf.compat.v1, tf.compat.v1.graph_util)
        def import_graph_def(graph_def: Any, *args: Any, **kwargs: Any) -> Any:
            if ops.inside_function() and any(is_random(node.op) for node in graph_def.node):
                self._found.add("the random ops of a graph that is imported (import_graph_def)")
            return original_import(graph_def, *args, **kwargs)

    def _named_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def named(*args: Any, **kwargs: Any) -> Any:
            self._found.add(f"{name} (a function of a SavedModel with random ops, whose state TensorFlow keeps)")
            return call(*args, **kwargs)

        return named


@functools.lru_cache(maxsize=16)
def _draws_in(graph: Any, _version: int) -> bool:
    return any(is_random(op.type) for op in graph.get_operations())


def _drawing(library: Any) -> set[str]:
    """Return the names of a library's functions that contain stateful random ops, or calls of such functions."""
    calls = {function.signature.name: set(_called(function)) for function in library.function}
    found = {name for name, ops_in in calls.items() if any(map(is_random, ops_in))}
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
