"""Which outputs of ops of a compiled function matter: those that its results, or what it stores, depend on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES: Final = ("If", "StatelessIf", "Case", "StatelessCase")
_FUNCTIONS: Final = ("f", "then_branch", "else_branch", "cond", "body", "branches")
"""Attributes of calls and control flow that name functions."""


def live_outputs(graph: Any, own_scope: str) -> set[tuple[int, str, int]]:
    """Return (id of the graph, op, output) of the live outputs of a function's ops and of those of functions that it
    calls.

    An output is live if an output of the function, or an op that stores or prints something, can be reached from it. Of
    a called function only the outputs that are used count. Ops in `own_scope` are detrain's and keep nothing alive.
    """
    walk = _Walk(own_scope)
    walk.function(graph, range(len(graph.outputs)))
    return walk.outputs


class _Walk:
    def __init__(self, own_scope: str) -> None:
        self._live: set[tuple[int, str]] = set()
        self._own_scope = own_scope
        self.outputs: set[tuple[int, str, int]] = set()
        """(id of the graph, op, output) that are used."""
        self._entered: set[int] = set()

    def function(self, graph: Any, used: Iterable[int]) -> None:
        """Mark what the used outputs of a function need, and once what has effects."""
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
        chain = [op]  # with what it waits for: such chains may be long
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


def called_graphs(graph: Any, op: Any) -> list[Any]:
    """Return the graphs of the functions that an op runs."""
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
