"""A walk through a compiled graph, op by op, before its run: the watch sees each op as if it ran by itself.

So sites in a graph are found, named and counted like those in eager code. Arguments that the graph writes are copied
for the walk, and random streams are put back after it: the run itself comes later.

A module's ops in a graph have the module's name (`nn_module_stack`), all others the name of the called module or
optimizer. An op that the backward graph computes again is another run of the forward pass's site.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
import torch
from torch.fx import Interpreter, Node

from detrain.adapters.torch.faults.graphs import CompiledGraph, Point, is_writing
from detrain.adapters.torch.faults.injector import Injector, Injectors, bits_copied
from detrain.adapters.torch.faults.op_operands import COPY, name_of
from detrain.adapters.torch.faults.step_place import OfNode, OpPlace
from detrain.adapters.torch.faults.watched_ops import WatchedOps
from detrain.faults.sites import Stage, op_and_output

_STAGES: Final[dict[str, Stage]] = {
    **dict.fromkeys(("is_forward", "must_be_in_forward"), "forward"),
    **dict.fromkeys(("is_backward", "must_be_in_backward"), "backward"),
}
"""The pass of a node, by PyTorch's mark on it: either graph may have some nodes of the other pass."""


class GraphCall(msgspec.Struct):
    """One call of a graph in the step."""

    graph: CompiledGraph
    place: OpPlace
    """The place of the call."""
    renamed: Sequence[tuple[str, str]]
    """Pairs of prefixes of modules' names: of modules for which the graph was made, and of those in this call."""
    turn: int
    """How often the graph was called there before."""
    number: Hashable
    """The number of autograd's function for the forward pass."""
    given: dict[str, Any] = {}
    """By the names of nodes: the outputs of the walk through the forward graph."""
    names: dict[str, list[tuple[str, str]]] = {}
    """By the names of nodes: the names and signatures of their sites in the forward graph."""


class GraphWalk(Interpreter):  # type: ignore[misc]
    """Walks through a graph once; finds the runs of the sites that are to be hit."""

    def __init__(self, call: GraphCall, ops: WatchedOps, injectors: Injectors) -> None:
        super().__init__(call.graph.module)
        self._call, self._ops, self._injectors = call, ops, injectors
        self._inputs = {node.name for node in call.graph.placeholders}
        self.points: list[Point] = []
        self.armed: dict[int, Injector] = {}
        """The injectors of the points that are to be hit, by the points' numbers."""

    def go(self, args: Sequence[Any]) -> None:
        """Walk through the graph with the arguments of a call."""
        graph, ops = self._call.graph, self._ops
        written = graph.written
        given = [self._call.given.get(node.name, each) for node, each in zip(graph.placeholders, args, strict=True)]
        mine = [bits_copied(each) if place in written else each for place, each in enumerate(given)]
        ops.begin_graph(self._call.place, args, [(args[place], mine[place]) for place in written])
        before, ops.injector = ops.injector, self  # during the walk nothing is hit
        try:
            self.run(*mine, enable_io_processing=False)
        finally:
            ops.injector = before

    def run_node(self, n: Node) -> Any:
        """Run a node."""
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op at the place of its node."""
        is_op = isinstance(target, torch._ops.OpOverload)
        if not is_op or (is_writing(self._node) and name_of(target) != COPY):
            return super().call_function(target, args, kwargs)
        if not self._node.all_input_nodes and hasattr(target, "impl_aten"):  # the seeds of Inductor's random numbers
            return self._ops.given_from_nowhere(target.impl_aten(*args, **kwargs))
        call, meta = self._call, self._node.meta
        stage = _STAGES.get(str(meta.get("partitioner_tag")), call.place.stage) if call.graph.has_gradients else call.place.stage
        is_again = call.graph.is_backward and stage == "forward"
        names = call.names
        number = call.number, meta.get("seq_nr")
        of_node = self._ops.of_node = OfNode(number, list(names.get(self._node.name, ())) if is_again else [])
        try:
            return self._ops.run_at(self._place(stage), target, args, kwargs)
        finally:
            self._ops.of_node = None
            if not call.graph.is_backward:
                names[self._node.name] = of_node.names

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Keep the outputs of the forward graph: the walk through the backward graph takes in the same tensors."""
        nodes: Any = self._node.args[0]
        if not self._call.graph.is_backward:
            kept = {node.name: each for node, each in zip(nodes, args[0], strict=True) if isinstance(node, Node)}
            self._call.given.update({name: each for name, each in kept.items() if name not in self._inputs})
        return super().output(target, args, kwargs)

    def _place(self, stage: Stage) -> OpPlace:
        call, meta = self._call, self._node.meta
        stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
        root = call.graph.passes.root
        for key in (*reversed(stack), *([str(id(root()))] if root is not None else [])):
            layer = self._ops.where.layer_at(int(key.partition("@")[0]))
            if layer:
                return OpPlace(stage, self._renamed(layer), (call.place.call, call.turn, key))
        return OpPlace(stage, call.place.layer, call.place.call)

    def _renamed(self, layer: str) -> str:
        for old, new in self._call.renamed:
            if f"{layer}.".startswith(f"{old}."):
                return new + layer[len(old) :]
        return layer

    # The methods of the injectors, for which this stands in.

    def must_hit(self, name: str, signature: str) -> bool:
        """Return whether the op that is about to run is a run of a fault's site; each run is a point of its own."""
        self._due = next((each for each in self._injectors.all() if each.is_site(name, signature)), self._injectors.first)
        self._is_now = self._due.must_hit(name, signature)
        return self._due.is_site(name, signature)

    def hit(self, args: Sequence[Any], run: Any, outputs_of: Any) -> Any:
        """Note the point of the fault; run the op without it."""
        result = run(args)
        copied = self._node.args[1] if name_of(self._node.target) == COPY else None
        self._enter(args, [args[1]] if copied is not None else outputs_of(result), copied)
        return result

    def copy_with_fault(self, tensor: Any) -> Any:
        """Note the point of the fault; return a copy without it."""
        self._enter((), [tensor], next(each for each in self._node.all_input_nodes if self.env.get(each) is tensor))
        return bits_copied(tensor)

    def _enter(self, args: Sequence[Any], outputs: Sequence[Any], taken_in: Any) -> None:
        injector, injection = self._due, self._due.injection
        if injection is None or not injector.may_take(args, outputs, is_now=self._is_now):
            return
        if self._is_now:
            self.armed[len(self.points)] = injector
        of_operand = (injection.index or 0) if injection.operand != "output" else None
        source = taken_in.name if isinstance(taken_in, Node) else ""
        self.points.append(Point(self._node.name, source, op_and_output(injection.site)[1], of_operand, bool(injection.limited)))
