"""The op outputs in a compiled function that its results or stored values depend on, and the function's first access to
each variable that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import tensorflow as tf

First = Literal["", "read", "overwritten"]
"""The first access to a variable; empty: none."""

_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES: Final = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS: Final = ("While", "StatelessWhile")
_FUNCTIONS: Final = ("f", "then_branch", "else_branch", "cond", "body", "branches")
"""Attributes of calls and control flow that name functions."""
_NO_ACCESS: Final = ("VarIsInitializedOp", "VariableShape", "DisableCopyOnRead", "NoOp")
"""Ops that take a variable and do not read its value."""


def live_outputs(graph: Any, own_scope: str) -> set[tuple[int, str, int]]:
    """Return (id of the graph, op, output) of the live outputs of ops in a function and in functions that it calls.

    An output is live if an output of the function, or an op that stores or prints something, depends on it. Of a called
    function only the outputs that are used count. Ops in `own_scope` are detrain's and keep nothing alive.
    """
    walk = _LivenessWalk(own_scope)
    walk.function(graph, range(len(graph.outputs)))
    return walk.outputs


class _LivenessWalk:
    def __init__(self, own_scope: str) -> None:
        self._live: set[tuple[int, str]] = set()
        self._own_scope = own_scope
        self.outputs: set[tuple[int, str, int]] = set()
        """The used outputs: (id of the graph, op, output)."""
        self._entered: set[int] = set()

    def function(self, graph: Any, used: Iterable[int]) -> None:
        """Mark the ops that a function's used outputs need, and on the first visit those that ops with effects need."""
        waiting = [graph.outputs[index] for index in used if index < len(graph.outputs)]
        effects: list[Any] = []
        if id(graph) not in self._entered:
            self._entered.add(id(graph))
            effects = [op for op in graph.get_operations() if self._has_effect(graph, op)]
        for op in effects:
            self._op(graph, op, waiting)
        while waiting:
            tensor = waiting.pop()
            key = (id(graph), tensor.op.name, tensor.value_index)
            if tensor.graph is graph and key not in self.outputs:
                self.outputs.add(key)
                self._op(graph, tensor.op, waiting, tensor.value_index)

    def _op(self, graph: Any, op: Any, waiting: list[Any], output: int | None = None) -> None:
        chain = [op]  # with the ops it has control edges from: such chains may be long
        while chain:
            each = chain.pop()
            is_new = (id(graph), each.name) not in self._live
            self._live.add((id(graph), each.name))
            for called in called_graphs(graph, each):
                if each.type in (*_CALLS, *_BRANCHES):
                    self.function(called, [output] if each is op and output is not None else [])
                elif is_new:
                    self.function(called, range(len(called.outputs)))
            if is_new:
                waiting.extend(each.inputs)
                own = self._own_scope
                chain.extend(
                    control
                    for control in each.control_inputs
                    if (id(graph), control.name) not in self._live and not control.name.startswith(own)
                )

    def _has_effect(self, graph: Any, op: Any) -> bool:
        if op.name.startswith(self._own_scope):
            return False
        if op.type in _CALLS or called_graphs(graph, op):
            return bool(op._is_stateful)
        return bool(op._is_stateful) and op.type not in ("ReadVariableOp", "Placeholder", "VarIsInitializedOp")


class GraphFirstAccesses:
    """The first access to each variable among functions' inputs; each function is looked at once, however often called.

    Ops on one variable run in the order in which they were made. `live`: see `live_outputs`; a read that nothing
    depends on is none. If the access depends on a branch or on turns of a loop, it counts as a read.
    """

    def __init__(self, live: set[tuple[int, str, int]], own_scope: str) -> None:
        self._live = live
        self._own_scope = own_scope
        self._known: dict[Any, list[First]] = {}

    def of(self, graph: Any) -> list[First]:
        """Return the first access to each of a function's inputs, in their order."""
        if graph not in self._known:
            self._known[graph] = self._of(graph)
        return self._known[graph]

    def _of(self, graph: Any) -> list[First]:
        known: dict[str, First] = {}
        for op in graph.get_operations():
            for place, tensor in enumerate(op.inputs):
                is_first = tensor.dtype == tf.resource and not known.get(tensor.op.name)
                if is_first and not op.name.startswith(self._own_scope):
                    known[tensor.op.name] = self._first(graph, op, place)
        return [known.get(tensor.op.name, "") for tensor in graph.inputs]

    def _first(self, graph: Any, op: Any, place: int) -> First:
        """Return an op's access to the variable that is its input at `place`."""
        if op.type in _NO_ACCESS:
            return ""
        if op.type == "ReadVariableOp":
            return "read" if (id(graph), op.name, 0) in self._live else ""
        if op.type == "AssignVariableOp":
            return "overwritten"
        inside = called_graphs(graph, op)
        if op.type not in (*_CALLS, *_BRANCHES, *_LOOPS) or not inside:
            return "read"
        place -= op.type in _BRANCHES  # a branch's first input is the value that it decides by
        found = [self.of(each)[place] for each in inside]
        if op.type in _LOOPS:
            return "read" if any(found) else ""
        return found[0] if len(set(found)) == 1 else "read"


def called_graphs(graph: Any, op: Any) -> list[Any]:
    """Return the graphs of the functions that an op calls."""
    names: list[str] = []
    attributes = op.node_def.attr
    for key in _FUNCTIONS:
        if key in attributes:
            value = attributes[key]
            names += [value.func.name] if value.func.name else [each.name for each in value.list.func]
    found = []
    for name in names:
        function = _function(graph, name)
        if function is not None:
            found.append(function.graph)
    return found


def _function(graph: Any, name: str) -> Any:
    while graph is not None:
        known = graph._get_function(name)
        if known is not None:
            return known
        graph = getattr(graph, "outer_graph", None)
    return None
