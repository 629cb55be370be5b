"""Sites in TensorFlow: which ops a program's compiled functions are made of, while they are traced.

Every op of a graph is made by one function of TensorFlow's (`_apply_op_helper`); what it returns takes the op's place wherever its
outputs are used, on the gradient tape too. So an output can be replaced there: the backward pass sees what was put in, the
op's own inputs stay. Eager ops do not pass that way and cost nothing (detrain.adapters.tensorflow.faults.eager_sites).

Names do not use TensorFlow's own, which are made unique by counting what was traced before: a site is the k-th op of its type that
a layer makes in a stage. The functions of tf.data are left out (they belong to the loader), and ops that do no arithmetic.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import tensorflow as tf
import xxhash
from tensorflow.python.eager import backprop, context, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph, op_def_library, ops
from tensorflow.python.ops import cond_v2, control_flow_util_v2, gradients_util, while_v2
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from detrain.adapters.tensorflow.faults.eager_sites import EagerSites
from detrain.adapters.tensorflow.faults.live_outputs import live_outputs
from detrain.adapters.tensorflow.faults.step_stage import Late, Where
from detrain.adapters.tensorflow.hidden import hidden_variable, linked
from detrain.faults.sites import CONTRACTIONS, OperandShape, Role, Site, Stage, output_name, places_of

OWN_FUNCTION: Final = "detrain_own"
"""Names of detrain's own functions begin so."""
OWN_SCOPE: Final = "detrain_fault"
"""Name scope of the ops that detrain itself puts into a graph."""

_NO_ARITHMETIC: Final = frozenset(
    {
        *("Assert", "Case", "Const", "Enter", "Exit", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "If", "Merge"),
        *("NextIteration", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault", "PreventGradient", "Rank"),
        *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Snapshot", "Squeeze", "StatefulPartitionedCall"),
        *("StatelessCase", "StatelessIf", "StatelessWhile", "StopGradient", "Switch", "VarHandleOp", "VarIsInitializedOp", "While"),
    }
)
"""Ops that compute nothing. Gradients of loops and branches look for the op behind their outputs: nothing may stand between."""
_DTYPES: Final = (tf.float32, tf.float16, tf.bfloat16, tf.int32, tf.int8)
_ATTRIBUTES: Final = (
    *("strides", "padding", "explicit_paddings", "dilations", "data_format"),
    *("transpose_a", "transpose_b", "adj_x", "adj_y", "equation"),
)
_LOADERS: Final = (
    "detrain_own",
    "Dataset_",
    "_next_func",
    "_remote_next_func",
    "_init_func",
    "_remote_init_func",
    "_finalize_func",
)
"""Names of the functions of tf.data begin so, and of those of our own."""
_BODY_OVER_DATA: Final = "Dataset_scan_scan_body"
"""The name of the function of tf.data that is the body of a loop in a compiled function begins so."""
_MOST_AXES: Final = 8
_STEPS_BACK: Final = 4
"""So far back the ops count from which the inputs of one come."""
_MOST_REACHED: Final = 64
_NO_SHAPE: Final = np.array([-1] + [0] * _MOST_AXES)
"""The note of a shape that has not been seen: rank, sizes, zeros."""
_GRADIENT_GRAPHS: Final = (while_v2._WhileBodyGradFuncGraph, cond_v2._CondGradFuncGraph)
_PARTS: Final = (
    *(control_flow_util_v2.CondBranchFuncGraph, control_flow_util_v2.WhileBodyFuncGraph, control_flow_util_v2.WhileCondFuncGraph),
)
_NUMBER: Final = re.compile(r"(_\d+)+$")
_NUMBERS: Final = re.compile(r"_\d+(?=_|$)")
_PRODUCTS: Final = ("MatMul", "BatchMatMulV2", "BatchMatMulV3")
"""Those in which either factor may be the weight."""
_FACTORS: Final = 2
_RESHAPED: Final = ("Identity", "Cast", "Reshape", "Transpose", "Squeeze", "ExpandDims")
_REPLICA: Final = re.compile(r"\breplica_(\d+)/")


@dataclass(slots=True)
class Op:
    """One op of one graph, as it was made."""

    key: str
    """The site's name."""
    function: str
    replica: int
    layer: str
    stage: Stage
    op: Any
    roles: dict[int, Role] = field(default_factory=dict)
    """Which gradient an output is."""
    is_turned: bool = False
    """Whether its weight comes before its input: as the program has written it (`W @ x`), or, in gradients of products with a
    transposed matrix, as TensorFlow has exchanged them."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """Hidden variables that take the operands' shapes when the graph runs, where tracing does not tell them."""
    signature: str = ""
    """Of the site, where sites are listed."""
    digest: Any = None
    """Hidden variable that takes a digest of the outputs when the graph runs."""


class Point(Protocol):
    """What replaces an output of an op."""

    def is_for(self, signature: Callable[[], str]) -> bool:
        """Return whether an op of its name is the one meant, which another trace may not make."""

    def replace(self, op: Any, output: int, golden: Any) -> Any:
        """Return what is to be used in place of an op's output, which is `golden`. Called in the op's graph."""


class Sites:
    """Watches ops being made. `points(name, replica)` returns what is put at a site; `counts` has runs measured, too."""

    def __init__(self, points: Callable[[str, int], list[Point]], *, counts: bool, has_digests: bool = False) -> None:
        self._points = points
        self._counts = counts
        self._has_digests = has_digests
        self.where: Final = Where()
        self._is_late = Late(self._stage_of)
        self.eager: Final = EagerSites(self.where, operands_of, _ATTRIBUTES, _NO_ARITHMETIC)
        self._ops: dict[tuple[int, str], Op] = {}
        """Ops by (id of their graph, name)."""
        self._scopes: dict[tuple[str, str], str] = {}
        """The layer that made ops in a name scope of a function."""
        self._turns: dict[tuple[int, int, str], int] = {}
        self._replaced: dict[tuple[int, str, int], Any] = {}
        """What has been put in place of outputs, by (id of their graph, name of the op, number)."""
        self._originals: dict[tuple[int, str, int], Any] = {}
        """And the outputs, by what has been put in their places."""
        self._runs: dict[int, Any] = {}
        """Counters of the runs of graphs, by id."""
        self._called: dict[int, Any] = {}
        """Outermost graphs that eager code has run."""
        self.where.watch()
        self._watch_captures()
        self._watch_parallel_for()
        self._watch_ops()
        self._watch_gradients()
        self._watch_calls()

    def on_keras(self) -> None:
        """Keras is there now: learn which layer makes an op, and which ops are of an optimizer."""
        import keras
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        self._watch_layers(keras.Layer)
        for cls in (BaseOptimizer, keras.optimizers.Optimizer):
            self._watch_optimizer(cls, "apply")

    def on_keras_2(self) -> None:
        """Keras 2 (`tf_keras`) is there now."""
        import tf_keras

        self._watch_layers(tf_keras.layers.Layer)
        for cls in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
            self._watch_optimizer(cls, "apply_gradients")

    def _watch_layers(self, cls: Any) -> None:
        original_call = cls.__call__
        here = self.where

        @functools.wraps(original_call)
        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            here.layers.append(str(layer.name))
            try:
                return original_call(layer, *args, **kwargs)
            finally:
                here.layers.pop()

        cls.__call__ = called

    def _watch_optimizer(self, cls: Any, method: str) -> None:
        original = vars(cls).get(method)
        if original is None:  # it is inherited
            return
        here = self.where

        @functools.wraps(original)
        def applied(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            here.optimizers.append(str(getattr(optimizer, "name", None) or optimizer._name))
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                here.optimizers.pop()

        setattr(cls, method, applied)

    @contextlib.contextmanager
    def own_ops(self, graph: Any) -> Iterator[None]:
        """Make ops that are no sites, and that no tape records."""
        self.where.own += 1
        try:
            with graph.as_default(), ops.name_scope(f"{OWN_SCOPE}/"), record.stop_recording():
                yield
        finally:
            self.where.own -= 1

    def _watch_captures(self) -> None:
        """Let what is of no graph (our variables) into the gradients of loops and branches: through the graph around them."""
        original = func_graph.FuncGraph.capture

        @functools.wraps(original)
        def captured(graph: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return original(graph, graph.outer_graph.capture(tensor) if hasattr(tensor, "_numpy") else tensor, *args, **kwargs)

        for cls in _GRADIENT_GRAPHS:
            cls.capture = captured

    def _watch_parallel_for(self) -> None:
        """Leave alone what is made to be made over (`vectorized_map`, jacobians): what is made of it is what runs."""
        original = parallel_for._pfor_impl

        @functools.wraps(original)
        def converted(loop_fn: Any, *args: Any, **kwargs: Any) -> Any:
            @functools.wraps(loop_fn)
            def body(*given: Any, **named: Any) -> Any:
                self.where.own += 1
                try:
                    return loop_fn(*given, **named)
                finally:
                    self.where.own -= 1

            return original(body, *args, **kwargs)

        parallel_for._pfor_impl = converted

    def _watch_ops(self) -> None:
        original = op_def_library._apply_op_helper

        @functools.wraps(original)
        def made(op_type_name: str, *args: Any, **kwargs: Any) -> Any:
            if self.where.own:
                return original(op_type_name, *args, **kwargs)
            if self._replaced:  # gradients that are taken by walking through a graph ask its ops for their outputs
                kwargs = {key: self._in_place_of(value) for key, value in kwargs.items()}
            result = original(op_type_name, *args, **kwargs)
            if op_type_name in _NO_ARITHMETIC:
                return result
            structure, is_stateful, op, outputs = result
            function = function_of(op.graph)
            if function is None or op.graph is not ops.get_default_graph():  # or moved out of the gradient of a loop
                return result
            if not numbers_of(outputs):
                return result
            return structure, is_stateful, op, self._on_op(function, op, list(outputs))

        op_def_library._apply_op_helper = made

    def _in_place_of(self, value: Any) -> Any:
        """Return what has been put in place of a tensor, or of those in a list."""
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._in_place_of(each) for each in value)
        if not isinstance(value, tf.Tensor) or not hasattr(value, "op"):
            return value
        return self._replaced.get((id(value.graph), value.op.name, value.value_index), value)

    def _stage_of(self, op: Any) -> Stage | None:
        found = self._ops.get((id(op.graph), op.name))
        return found.stage if found is not None else None

    def _on_op(self, function: str, op: Any, outputs: list[Any]) -> list[Any]:
        here = self.where
        graph = op.graph
        scope = graph.get_name_scope()
        stage, layer = here.stage(_plain(scope), lambda: any(map(self._is_late, op.inputs)))
        self._scopes.setdefault((function, scope), layer)
        replica = replica_of(graph)
        base = "/".join(part for part in (function, stage, layer, op.type) if part)
        place = (id(_trace_of(graph)), replica, base)
        turn = self._turns[place] = self._turns.get(place, -1) + 1
        found = Op(f"{base}#{turn}" if turn else base, function, replica, layer, stage, op)
        found.is_turned = stage == "forward" and _has_weight_first(op.type, op.inputs)
        self._ops[id(graph), op.name] = found
        if here.gradients:
            here.gradients[-1][1].append(found)
        given = list(outputs)
        signature = functools.cache(lambda: self._signature(op))
        if self._counts:
            found.signature = signature()
        for number in numbers_of(outputs):
            for point in self._points(output_name(found.key, number), replica):
                if point.is_for(signature):
                    with self.own_ops(graph):
                        given[number] = point.replace(op, number, given[number])
        if self._counts:
            self._measure(found, given)
        if self._has_digests:
            self._take_digest(found, given)
        for number, (before, after) in enumerate(zip(outputs, given, strict=True)):
            if after is not before:
                self._replaced[id(graph), op.name, number] = after
                self._originals[id(graph), after.op.name, after.value_index] = before
        return given

    def _signature(self, op: Any) -> str:
        """Return a digest of the ops that an op's inputs come from, some steps back; of what is put in place, what stood there."""
        state = xxhash.xxh3_64()
        reached = list(op.inputs)
        for _step in range(_STEPS_BACK):
            before = [self._originals.get((id(each.graph), each.op.name, each.value_index), each) for each in reached]
            for tensor in before:
                known = self._ops.get((id(tensor.graph), tensor.op.name))
                name = tensor.op.type if known is None else known.key.removeprefix(known.function)
                state.update(f"{name} {tensor.value_index}\n".encode())
            reached = [each for tensor in before for each in tensor.op.inputs][:_MOST_REACHED]
            state.update(b"\n")
        return state.hexdigest()

    def _take_digest(self, found: Op, given: list[Any]) -> None:
        """Have a digest taken when the op's graph runs."""
        numbers = numbers_of(given)
        with self.own_ops(found.op.graph):
            found.digest = hidden_variable(0, tf.int64)
            digest = tf.add_n([_digest(given[number]) * (number + 1) for number in numbers])
            with tf.control_dependencies([found.digest.assign(digest, read_value=False)]):
                given[numbers[0]] = linked(given[numbers[0]], tf.identity(given[numbers[0]]))

    def _measure(self, found: Op, given: list[Any]) -> None:
        """Have the runs of the op's graph counted, and its shapes noted when it runs, where tracing does not tell them."""
        graph = found.op.graph
        with self.own_ops(graph):
            notes = []
            if id(graph) not in self._runs:
                self._runs[id(graph)] = hidden_variable(0, tf.int64)
                notes.append(self._runs[id(graph)].assign_add(1, read_value=False))
            for number in numbers_of(given):
                for _index, tensor in operands_of(found.op, number).values():
                    if not tensor.shape.is_fully_defined() and tensor.name not in found.shapes:
                        noted = found.shapes[tensor.name] = hidden_variable(_NO_SHAPE, tf.int64)
                        notes.append(noted.assign(_padded_shape(tensor), read_value=False))
            if notes:
                first = numbers_of(given)[0]
                with tf.control_dependencies(notes):
                    given[first] = linked(given[first], tf.identity(given[first]))

    def _watch_gradients(self) -> None:
        original_tape = backprop._gradient_function
        original_symbolic = gradients_util._MaybeCompile

        def of_tape(op_name: str, *rest: Any) -> Any:
            if context.executing_eagerly():
                return self.eager.gradient(original_tape, op_name, *rest)
            function = function_of(ops.get_default_graph())
            layer = self._scopes.get((function or "", str(rest[-1] or "")), "")
            with self._in_gradient(op_name, layer, rest[4], rest[2] or ()) as finish:
                return finish(original_tape(op_name, *rest))

        def of_graph(scope: Any, op: Any, func: Any, gradient: Any) -> Any:
            known = self._ops.get((id(op.graph), op.name))
            closure = dict(zip(gradient.__code__.co_freevars, gradient.__closure__ or (), strict=True))
            grads = closure["out_grads"].cell_contents if "out_grads" in closure else []
            with self._in_gradient(op.type, known.layer if known is not None else "", grads, op.inputs) as finish:
                return finish(original_symbolic(scope, op, func, gradient))

        backprop._gradient_function = of_tape
        backprop.pywrap_tfe.TFE_Py_RegisterGradientFunction(of_tape)
        gradients_util._MaybeCompile = of_graph

    @contextlib.contextmanager
    def _in_gradient(
        self, op_type: str, layer: str, upstream: Iterable[Any], given: Sequence[Any]
    ) -> Iterator[Callable[[Any], Any]]:
        """Run the gradient function of an op; `given` are its inputs, `upstream` the gradients of what it has made of them.

        What it returns says which of its ops is the gradient of the input, and which of the weight.
        """
        made: list[Op] = []
        weight = 0 if _has_weight_first(op_type, given) else 1
        self.where.gradients.append((layer, made))

        def finish(grads: Any) -> Any:
            for index, grad in enumerate(grads if isinstance(grads, list | tuple) else [grads]):
                if isinstance(grad, tf.Tensor) and op_type not in _NO_ARITHMETIC:
                    found = _maker(grad, made)
                    if found is not None:
                        own = grad.value_index if grad.op is found.op else 0
                        found.roles[own] = "grad_wt" if index == weight else "grad_in"
                        found.is_turned = _is_turned(found, found.roles[own], made, upstream)
            return grads

        try:
            yield finish
        finally:
            self.where.gradients.pop()

    def begin_step(self) -> None:
        """Count runs from here on."""
        self.eager.begin(notes=True)
        self._called.clear()
        for counter in self._runs.values():
            counter.assign(0)

    def _watch_calls(self) -> None:
        original = concrete_function.ConcreteFunction._call_flat

        @functools.wraps(original)
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            if context.executing_eagerly():
                self._called[id(function._func_graph)] = function._func_graph
            return original(function, *args, **kwargs)

        concrete_function.ConcreteFunction._call_flat = called
        original_gradient = imperative_grad.imperative_grad

        @functools.wraps(original_gradient)
        def taken(*args: Any, **kwargs: Any) -> Any:
            result = original_gradient(*args, **kwargs)
            if context.executing_eagerly():  # a function that eager code has called gives its gradients without an op of ours
                self.eager.note_gradients(result)
            return result

        imperative_grad.imperative_grad = taken

    def sites(self) -> list[Site]:
        """Return the sites of the functions that have run since `begin_step`, in the order in which they were traced."""
        alive: set[tuple[int, str, int]] = set()
        for graph in self._called.values():
            alive |= live_outputs(graph, OWN_SCOPE)
        runs: dict[tuple[str, str], int] = {}
        replicas: dict[str, int] = {}
        found: dict[tuple[str, str], Site] = {}
        for known in self._ops.values():
            count = int(self._runs[id(known.op.graph)].numpy())
            for number in numbers_of(known.op.outputs):
                name = output_name(known.key, number)
                replicas[name] = max(replicas.get(name, 1), known.replica + 1)
                if known.replica or count == 0:
                    continue
                which = name, known.signature
                runs[which] = runs.get(which, 0) + count
                is_alive = (id(known.op.graph), known.op.name, number) in alive
                if which not in found or (is_alive and not found[which].is_alive):
                    found[which] = self._site(known, number, is_alive=is_alive)
        compiled = [
            msgspec.structs.replace(site, replicas=replicas[site.name], executions=runs[which]) for which, site in found.items()
        ]
        return compiled + self.eager.sites()

    def digests(self) -> list[tuple[str, int, int]]:
        """Return (name, replica, digest) of each op, in the order in which they were traced: an op's inputs come before it."""
        return [(known.key, known.replica, int(known.digest.numpy())) for known in self._ops.values() if known.digest is not None]

    def _site(self, known: Op, output: int, *, is_alive: bool) -> Site:
        return Site(
            name=output_name(known.key, output),
            layer=known.layer,
            op=known.op.type,
            stage=known.stage,
            role=known.roles.get(output, ""),
            operands={
                name: OperandShape(index, _shape(tensor, known.shapes.get(tensor.name)), tensor.dtype.name)
                for name, (index, tensor) in operands_of(known.op, output, is_turned=known.is_turned).items()
            },
            executions=0,
            is_alive=is_alive,
            attributes=_attributes(known.op),
            signature=known.signature,
        )


def numbers_of(outputs: Sequence[Any]) -> list[int]:
    """Return which of an op's outputs are of dtypes that a fault can be in."""
    return [number for number, output in enumerate(outputs) if output.dtype in _DTYPES]


def operands_of(op: Any, output: int, *, is_turned: bool = False) -> dict[str, tuple[int, Any]]:
    """Return the operands of one output of an op, by name, with their place among the op's inputs or outputs.

    `is_turned`: its weight comes before its input.
    """
    operands = {}
    if op.type in CONTRACTIONS:
        places = places_of(op.type)
        for name, index in zip(("input", "weight"), places[::-1] if is_turned else places, strict=True):
            if index < len(op.inputs):
                operands[name] = (index, op.inputs[index])
    operands["output"] = (output, op.outputs[output])
    return operands


def _digest(tensor: Any) -> Any:
    """Return a sum of an output's bit patterns, each times its place: exact integers, so that no order of adding changes it."""
    flat = tf.reshape(tensor, [-1])
    bits = flat if tensor.dtype.is_integer else tf.bitcast(flat, tf.int32 if tensor.dtype.size == 4 else tf.int16)
    places = tf.range(tf.size(bits, out_type=tf.int64), dtype=tf.int64) % 65_521 + 1
    return tf.reduce_sum(tf.cast(bits, tf.int64) * places)


def _padded_shape(tensor: Any) -> Any:
    """Return the rank of a tensor and its shape, in a length that is always the same: XLA has no other."""
    shape = tf.shape(tensor, out_type=tf.int64)
    rank = tf.size(shape, out_type=tf.int64)
    zeros = tf.fill([tf.maximum(_MOST_AXES - rank, 0)], tf.constant(0, tf.int64))
    return tf.ensure_shape(tf.concat([[rank], shape, zeros], 0)[: _MOST_AXES + 1], _NO_SHAPE.shape)


def _shape(tensor: Any, noted: Any) -> tuple[int, ...]:
    rank, *sizes = (-1,) if noted is None else (int(size) for size in noted.numpy())
    if 0 <= rank <= _MOST_AXES:
        return tuple(sizes[:rank])
    return tuple(-1 if size is None else int(size) for size in tensor.shape) if tensor.shape.rank is not None else (-1,)


def _attributes(op: Any) -> dict[str, list[int] | str | bool]:
    """Return those of an op's attributes that say which outputs an operand reaches."""
    found: dict[str, list[int] | str | bool] = {}
    for name in _ATTRIBUTES if op.type in CONTRACTIONS else ():
        if name in op.node_def.attr:
            value = op.get_attr(name)
            found[name] = value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, list | tuple) else value
    return found


def _maker(grad: Any, made: list[Op]) -> Op | None:
    """Return the op of a gradient function that a gradient comes from: the last contraction on its way, or the op itself."""
    by_name = {each.op.name: each for each in made}
    tensor, last = grad, None
    while tensor.op.name in by_name or tensor.op.type in ("Reshape", "Identity", "IdentityN", "Snapshot", "Sum", "Cast"):
        found = by_name.get(tensor.op.name)
        if found is not None and (last is None or found.op.type in CONTRACTIONS):
            last = found
        if (found is not None and found.op.type in CONTRACTIONS) or not tensor.op.inputs:
            break
        tensor = tensor.op.inputs[-1 if tensor.op.type == "IdentityN" else 0]
    return last


def _is_turned(found: Op, role: Role, made: list[Op], upstream: Iterable[Any]) -> bool:
    """Return whether a gradient's op has its weight before its input: dY is the input of dX, and the weight of dW."""
    if found.op.type not in CONTRACTIONS or len(found.op.inputs) < 2:
        return False
    given = {(tensor.op.name, tensor.value_index) for tensor in upstream if isinstance(tensor, tf.Tensor)}
    names = {each.op.name for each in made}

    def is_given(tensor: Any) -> bool:
        if (tensor.op.name, tensor.value_index) in given:
            return True
        return (tensor.op.name in names or tensor.op.type in _NO_ARITHMETIC) and any(map(is_given, tensor.op.inputs))

    first, second = (is_given(found.op.inputs[index]) for index in places_of(found.op.type))
    return (second and not first) if role == "grad_in" else (first and not second)


def _has_weight_first(op_type: str, inputs: Sequence[Any]) -> bool:
    """Return whether a product has a variable for its first factor, and none for its second."""
    return op_type in _PRODUCTS and len(inputs) >= _FACTORS and _is_variable(inputs[0]) and not _is_variable(inputs[1])


def _is_variable(tensor: Any) -> bool:
    """Return whether a tensor of a graph is what a variable holds, in another shape or type perhaps."""
    while hasattr(tensor, "op") and tensor.op.type in _RESHAPED and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return hasattr(tensor, "op") and tensor.op.type == "ReadVariableOp"


def _plain(scope: str) -> str:
    """Return a name scope without what TensorFlow adds to make it unique, which depends on what was traced before."""
    parts = _REPLICA.sub("", f"{scope}/").split("/")
    return "/".join(_NUMBER.sub("", part) for part in parts if part not in ("", "gradient_tape"))


def replica_of(graph: Any) -> int:
    """Return the replica whose step is being traced in this thread, 0 where there are none."""
    replica = getattr(tf.distribute.get_replica_context(), "_replica_id_in_sync_group", 0)
    return replica if isinstance(replica, int) else _named_replica(f"{graph.get_name_scope()}/")


def _named_replica(scope: str) -> int:
    match = _REPLICA.search(scope)
    return int(match[1]) if match else 0


def _trace_of(graph: Any) -> Any:
    """Return the graph of the function's trace that a graph (a branch, a loop's body) is a part of."""
    while _is_body_over_data(graph) or getattr(graph.outer_graph, "detrain_function", None) == graph.detrain_function:
        graph = graph.outer_graph
    return graph


def _is_body_over_data(graph: Any) -> bool:
    """Return whether a function of tf.data is the body of a loop of a compiled function over a set, not a part of the set."""
    return isinstance(graph.outer_graph, func_graph.FuncGraph) and str(graph.name).startswith(_BODY_OVER_DATA)


def function_of(graph: Any) -> str | None:
    """Return the name of the function that a graph belongs to, the same in every run.

    None outside of functions, and in those of loaders.
    """
    outer, owned = graph, graph
    while isinstance(outer, func_graph.FuncGraph):
        if _is_body_over_data(outer):
            owned = outer.outer_graph
        elif str(outer.name).startswith((*_LOADERS, OWN_FUNCTION)):
            return None
        outer = outer.outer_graph
    if outer is graph:
        return None
    owner = str(owned.detrain_function).rpartition("/")[2].rpartition(" ")[2] or "function"
    name = _NUMBER.sub("", str(graph.name)).removeprefix("Dataset_scan_")
    if isinstance(graph, _PARTS):  # layers in their names are numbered, too: k-th ops are told apart by their layer
        name = _NUMBERS.sub("", name)
    return owner if name in (owner, owner.partition(".")[0]) else f"{owner}:{name}"
