"""Sites in compiled functions: the ops that a program's functions consist of, found while these are traced.

One function of TensorFlow's (`_apply_op_helper`) makes every op of a graph; its results are used wherever the op's
outputs are, on the gradient tape too. So an output can be replaced there: the backward pass sees the replacement, while
the op's own inputs stay. Eager ops do not pass this function, and cost nothing here
(detrain.adapters.tensorflow.faults.eager_sites).

A value that an op stores, or that a branch or loop decides by, is replaced where it is handed over, for that op alone.

Names of sites do not use TensorFlow's names, which depend on earlier traces: a site is the k-th op of its type that a
layer makes in a stage. Functions of tf.data (they belong to the loader) and ops without arithmetic are left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
import tensorflow as tf
import xxhash
from tensorflow.python.eager import backprop, context, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph, op_def_library, ops
from tensorflow.python.ops import cond_v2, control_flow_util, control_flow_util_v2, gradients_util, while_v2
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from detrain.adapters.tensorflow.faults.eager_sites import EagerSites
from detrain.adapters.tensorflow.faults.graph_ops import (
    NO_ARITHMETIC,
    NO_SITES,
    PREDICATE_OF_LOOP,
    READ,
    Op,
    RunNotes,
    Taken,
    attributes_of,
    has_weight_first,
    is_turned,
    maker_of,
    numbers_of,
    operands_of,
    shape_of,
    taken_by,
)
from detrain.adapters.tensorflow.faults.graph_owners import function_of, plain_scope, replica_of, trace_of
from detrain.adapters.tensorflow.faults.live_outputs import First, GraphFirstAccesses, live_outputs
from detrain.adapters.tensorflow.faults.step_stage import BackwardTensors, ThreadStage, watch_layers, watch_optimizer
from detrain.base.in_place import in_place_of
from detrain.faults.sites import OperandShape, Site, Stage, output_name

OWN_SCOPE: Final = "detrain_fault"
"""The name scope of ops that detrain itself puts into a graph."""

_STEPS_BACK: Final = 4
"""The number of steps back over which the ops behind an op's inputs count for its signature."""
_MOST_REACHED: Final = 64
_GRADIENT_LOOP: Final = f"{while_v2._WhileGrad.__name__}."
_GRADIENT_GRAPHS: Final = (while_v2._WhileBodyGradFuncGraph, cond_v2._CondGradFuncGraph)


class Replacer(Protocol):
    """An object that replaces an output of an op."""

    def is_for(self, signature: Callable[[], str]) -> bool:
        """Return whether an op with the right name is the intended one, which another trace may lack."""

    def replace(self, op: Any, output: int, golden: Any) -> Any:
        """Return the tensor to use in place of an op's output `golden`. Called in the op's graph."""


class Sites:
    """The watcher of ops as they are made.

    `points(name, replica)` returns a site's replacers; with `counts` runs are counted.
    """

    def __init__(self, points: Callable[[str, int], list[Replacer]], *, counts: bool, has_digests: bool = False) -> None:
        self._points = points
        self._counts = counts
        self._has_digests = has_digests
        self.where: Final = ThreadStage()
        self._is_late = BackwardTensors(self._stage_of)
        self.eager: Final = EagerSites(self.where)
        self._ops: dict[tuple[int, str], Op] = {}
        """The ops, by (id of their graph, name)."""
        self._scopes: dict[tuple[str, str], str] = {}
        """The layer that made ops, by (function, name scope)."""
        self._turns: dict[tuple[int, int, str], int] = {}
        self._replaced: dict[tuple[int, str, int], Any] = {}
        """The replacements of outputs, by (id of their graph, name of the op, number)."""
        self._originals: dict[tuple[int, str, int], Any] = {}
        """The replaced outputs, by their replacements in the same form."""
        self._notes: Final = RunNotes(self.own_ops)
        self._called: dict[int, Any] = {}
        """Outermost graphs that eager code has run."""
        self._live: set[tuple[int, str, int]] | None = None
        """The live outputs in the called graphs; None until a step has been watched."""
        self.where.watch()
        self._watch_captures()
        self._watch_parallel_for()
        self._watch_ops()
        self._watch_loops()
        self._watch_gradients()
        self._watch_calls()

    def on_keras(self) -> None:
        """Watch Keras's layers and optimizers, so that sites are named by them: Keras has been imported."""
        import keras
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        watch_layers(self.where, keras.Layer)
        for cls in (BaseOptimizer, keras.optimizers.Optimizer):
            watch_optimizer(self.where, cls, "apply")

    def on_keras_2(self) -> None:
        """Watch the layers and optimizers of Keras 2 (`tf_keras`), which has been imported."""
        import tf_keras

        watch_layers(self.where, tf_keras.layers.Layer)
        for cls in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
            watch_optimizer(self.where, cls, "apply_gradients")

    @contextlib.contextmanager
    def own_ops(self, graph: Any) -> Iterator[None]:
        """Return a context in which new ops are no sites, and no tape records them."""
        with self.where.apart(), graph.as_default(), ops.name_scope(f"{OWN_SCOPE}/"), record.stop_recording():
            yield

    def _watch_captures(self) -> None:
        """Let detrain's variables, which belong to no graph, into gradients of loops and branches, through
        the outer graph.
        """
        original = func_graph.FuncGraph.capture

        @functools.wraps(original)
        def captured(graph: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return original(graph, graph.outer_graph.capture(tensor) if hasattr(tensor, "_numpy") else tensor, *args, **kwargs)

        for cls in _GRADIENT_GRAPHS:
            cls.capture = captured

    def _watch_parallel_for(self) -> None:
        """Put no sites into functions that are converted (`vectorized_map`, jacobians): only the converted ones run."""
        original = parallel_for._pfor_impl

        @in_place_of(parallel_for, "_pfor_impl")
        def converted(loop_fn: Any, *args: Any, **kwargs: Any) -> Any:
            @functools.wraps(loop_fn)
            def body(*given: Any, **named: Any) -> Any:
                with self.where.apart():
                    return loop_fn(*given, **named)

            return original(body, *args, **kwargs)

    def _watch_ops(self) -> None:
        original = op_def_library._apply_op_helper

        @in_place_of(op_def_library, "_apply_op_helper")
        def made(op_type_name: str, *args: Any, **kwargs: Any) -> Any:
            if self.where.own:
                return original(op_type_name, *args, **kwargs)
            if self._replaced:  # gradients taken by a walk through a graph use its ops' original outputs
                kwargs = {key: self._in_place_of(value) for key, value in kwargs.items()}
            taken = taken_by(op_type_name)
            if taken is not None and taken[1] in kwargs:
                kwargs[taken[1]] = self._on_taken(op_type_name, kwargs[taken[1]])
            result = original(op_type_name, *args, **kwargs)
            if op_type_name in NO_SITES:
                return result
            structure, is_stateful, op, outputs = result
            function = function_of(op.graph)
            if function is None or op.graph is not ops.get_default_graph():  # or moved out of a loop's gradient
                return result
            if not numbers_of(outputs):
                return result
            return structure, is_stateful, op, self._on_op(function, op, list(outputs))

    def _watch_loops(self) -> None:
        """Make a site of each result by which a loop's condition decides.

        There is none where a condition may store nothing (XLA), nor in a gradient's loop, which counts turns: such a
        condition must take in the same values as the body.
        """
        original = func_graph.func_graph_from_py_func

        @in_place_of(func_graph, "func_graph_from_py_func")
        def traced(name: Any, python_func: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(kwargs.get("func_graph"), control_flow_util_v2.WhileCondFuncGraph):
                return original(name, python_func, *args, **kwargs)

            @functools.wraps(python_func)
            def condition(*given: Any, **named: Any) -> Any:
                is_compiled = control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())
                is_closed = is_compiled or python_func.__qualname__.startswith(_GRADIENT_LOOP)
                with self.where.apart(is_so=is_closed):
                    return self._on_taken(PREDICATE_OF_LOOP, python_func(*given, **named))

            return original(name, condition, *args, **kwargs)

    def _in_place_of(self, value: Any) -> Any:
        """Return the replacement of a tensor, or of each tensor in a list; a value without one stays as it is."""
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._in_place_of(each) for each in value)
        if not isinstance(value, tf.Tensor) or not hasattr(value, "op"):
            return value
        return self._replaced.get((id(value.graph), value.op.name, value.value_index), value)

    def _stage_of(self, op: Any) -> Stage | None:
        found = self._ops.get((id(op.graph), op.name))
        return found.stage if found is not None and op.type != READ else None

    def _on_op(self, function: str, op: Any, outputs: list[Any]) -> list[Any]:
        here = self.where
        graph = op.graph
        found = self._found(function, op)
        found.is_turned = found.stage == "forward" and has_weight_first(op.type, op.inputs, self._original)
        if op.type != READ:
            self._scopes.setdefault((function, graph.get_name_scope()), found.layer)
        if here.gradients:
            here.gradients[-1][1].append(found)
        given = self._given(found, outputs)
        for number, (before, after) in enumerate(zip(outputs, given, strict=True)):
            if after is not before:
                self._replaced[id(graph), op.name, number] = after
                self._originals[id(graph), after.op.name, after.value_index] = before
        return given

    def _on_taken(self, op_type: str, value: Any) -> Any:
        """Return the value that an op of the traced graph is to take in: `value` itself, or its replacement."""
        graph = ops.get_default_graph()
        function = None if self.where.own else function_of(graph)
        if function is None or not isinstance(value, tf.Tensor) or not numbers_of([value]):
            return value
        if getattr(value, "graph", None) is not graph:
            value = graph.capture(value)
        found = self._found(function, Taken(op_type, graph, f"{value.name} for {op_type} {len(self._ops)}", [value]))
        return self._given(found, [value])[0]

    def _found(self, function: str, op: Any) -> Op:
        """Return the record of an op that is being made, or of a `Taken` value, with the name of its site."""
        graph = op.graph
        stage, layer = self.where.stage(plain_scope(graph.get_name_scope()), lambda: any(map(self._is_late, op.inputs)))
        replica = replica_of(graph)
        base = "/".join(part for part in (function, stage, layer, op.type) if part)
        place = (id(trace_of(graph)), replica, base)
        turn = self._turns[place] = self._turns.get(place, -1) + 1
        found = self._ops[id(graph), op.name] = Op(f"{base}#{turn}" if turn else base, function, replica, layer, stage, op)
        return found

    def _given(self, found: Op, outputs: list[Any]) -> list[Any]:
        """Return the tensors to use in place of an op's outputs."""
        given = list(outputs)
        signature = functools.cache(lambda: self._signature(found.op))
        if self._counts:
            found.signature = signature()
        for number in numbers_of(outputs):
            for point in self._points(output_name(found.key, number), found.replica):
                if point.is_for(signature):
                    with self.own_ops(found.op.graph):
                        given[number] = point.replace(found.op, number, given[number])
        if self._counts:
            self._notes.measure(found, given)
        if self._has_digests:
            self._notes.take_digest(found, given)
        return given

    def _original(self, tensor: Any) -> Any:
        """Return the tensor that a tensor has replaced, or the tensor itself."""
        is_of_graph = isinstance(tensor, tf.Tensor) and hasattr(tensor, "op")
        return self._originals.get((id(tensor.graph), tensor.op.name, tensor.value_index), tensor) if is_of_graph else tensor

    def _signature(self, op: Any) -> str:
        """Return a digest of the ops that an op's inputs come from, some steps back; replaced tensors count as the
        originals.

        Variables that loops and calls take in are left out, because notes and faults add some there.
        """
        state = xxhash.xxh3_64()
        reached = list(op.inputs)
        for _step in range(_STEPS_BACK):
            before = [self._original(each) for each in reached]
            for tensor in before:
                known = self._ops.get((id(tensor.graph), tensor.op.name))
                name = tensor.op.type if known is None or tensor.op.type == READ else known.key.removeprefix(known.function)
                state.update(f"{name} {tensor.value_index}\n".encode())
            taken = [(tensor.op.type, each) for tensor in before for each in tensor.op.inputs]
            reached = [each for kind, each in taken if kind not in NO_SITES or each.dtype != tf.resource][:_MOST_REACHED]
            state.update(b"\n")
        return state.hexdigest()

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
        """Run the gradient function of an op; `given` are the op's inputs, `upstream` the gradients of its outputs.

        The yielded function takes the results, and notes which ops are the gradient of the input and of the weight.
        """
        made: list[Op] = []
        weight = 0 if has_weight_first(op_type, given) else 1
        self.where.gradients.append((layer, made))

        def finish(grads: Any) -> Any:
            for index, grad in enumerate(grads if isinstance(grads, list | tuple) else [grads]):
                if isinstance(grad, tf.Tensor) and op_type not in NO_ARITHMETIC:
                    found = maker_of(grad, made)
                    if found is not None:
                        own = grad.value_index if grad.op is found.op else 0
                        found.roles[own] = "grad_wt" if index == weight else "grad_in"
                        found.is_turned = is_turned(found, found.roles[own], made, upstream)
            return grads

        try:
            yield finish
        finally:
            self.where.gradients.pop()

    def begin_step(self) -> None:
        """Forget called graphs, and begin to count runs and to note eager ops."""
        self._called.clear()
        self._notes.begin()
        self.eager.begin(notes=True)  # last, so that it does not see detrain's own assignments

    def _watch_calls(self) -> None:
        original = concrete_function.ConcreteFunction._call_flat

        @in_place_of(concrete_function.ConcreteFunction, "_call_flat")
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            if context.executing_eagerly():
                self._called[id(function._func_graph)] = function._func_graph
                self.eager.note_call(function._func_graph, (*args, *kwargs.values()))
            return original(function, *args, **kwargs)

        original_gradient = imperative_grad.imperative_grad

        @in_place_of(imperative_grad, "imperative_grad")
        def taken(*args: Any, **kwargs: Any) -> Any:
            result = original_gradient(*args, **kwargs)
            # a function called by eager code gives its gradients without any op that is watched
            if context.executing_eagerly():
                self.eager.note_gradients(result)
            return result

    def sites(self) -> list[Site]:
        """Return the sites of functions that ran since `begin_step`, in the order of tracing, then those of
        eager ops.
        """
        self.eager.end()
        alive: set[tuple[int, str, int]] = set()
        self._live = alive
        for graph in self._called.values():
            alive |= live_outputs(graph, OWN_SCOPE)
        runs: dict[tuple[str, str], int] = {}
        replicas: dict[str, int] = {}
        found: dict[tuple[str, str], Site] = {}
        for known in self._ops.values():
            count = self._notes.runs(known.op.graph)
            for number in numbers_of(known.op.outputs):
                name = output_name(known.key, number)
                replicas[name] = max(replicas.get(name, 1), known.replica + 1)
                if known.replica or count == 0:
                    continue
                which = name, known.signature
                runs[which] = runs.get(which, 0) + count
                is_alive = isinstance(known.op, Taken) or (id(known.op.graph), known.op.name, number) in alive
                if which not in found or (is_alive and not found[which].is_alive):
                    found[which] = self._site(known, number, is_alive=is_alive)
        compiled = [
            msgspec.structs.replace(site, replicas=replicas[site.name], executions=runs[which]) for which, site in found.items()
        ]
        return compiled + self.eager.sites()

    def accesses(self) -> dict[int, First] | None:
        """Return how the listed step first used each variable, by the numbers of the variables' handles. None if that
        is not known: gradients that eager code takes of functions run these in another way.
        """
        if self._live is None or self.eager.has_gradients():
            return None
        found: dict[int, First] = {}
        first = GraphFirstAccesses(self._live, OWN_SCOPE)
        for what, numbers in self.eager.accesses:
            kinds: list[First] = first.of(what) if hasattr(what, "inputs") else [what]
            if len(kinds) != len(numbers):
                return None
            for number, kind in zip(numbers, kinds, strict=True):
                found[number] = found.get(number) or kind
        return found

    def digests(self) -> list[tuple[str, int, int]]:
        """Return (name, replica, digest) of each op, in the order of tracing: an op's inputs come before it."""
        return [(known.key, known.replica, int(known.digest.numpy())) for known in self._ops.values() if known.digest is not None]

    def _site(self, known: Op, output: int, *, is_alive: bool) -> Site:
        return Site(
            name=output_name(known.key, output),
            layer=known.layer,
            op=known.op.type,
            stage=known.stage,
            role=known.roles.get(output, ""),
            operands={
                name: OperandShape(index, shape_of(tensor, known.shapes.get(tensor.name)), tensor.dtype.name)
                for name, (index, tensor) in operands_of(known.op, output, is_turned=known.is_turned).items()
            },
            executions=0,
            is_alive=is_alive,
            attributes=attributes_of(known.op),
            signature=known.signature,
        )
