"""Random ops whose state nobody can read, found as a program comes to run them, to be named beforehand.

They are those that come into traced functions without a counter, and those in what is no longer traced: functions out
of a SavedModel, imported graphs, sessions of TensorFlow 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as sessions
from tensorflow.python.framework import func_graph, importer, ops
from tensorflow.python.saved_model import function_deserialization

from detrain.adapters.tensorflow.random.graph_kinds import is_random, traced_function
from detrain.base.in_place import in_place_of


class KeptByKernels:
    """Watches for such ops from the moment TensorFlow is there."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._watch_ops()
        self._watch_loaded()
        self._watch_graphs()

    def names(self) -> list[str]:
        """Return them, in words."""
        return sorted(self._found)

    def _watch_ops(self) -> None:
        """Name the random ops that come into traced functions and have not been lifted, by whatever way."""
        original = func_graph.FuncGraph._create_op_internal

        @in_place_of(func_graph.FuncGraph, "_create_op_internal")
        def created(graph: Any, op_type: str, *args: Any, **kwargs: Any) -> Any:
            function = traced_function() if is_random(op_type) else None
            if function is not None:
                self._found.add(f"{op_type} in {function.name} (a random op whose state TensorFlow keeps)")
            return original(graph, op_type, *args, **kwargs)

    def _watch_loaded(self) -> None:
        """See the calls of those functions of SavedModels that draw, from eager code or from functions being traced."""
        original = function_deserialization.load_function_def_library

        @in_place_of(function_deserialization, "load_function_def_library")
        def loaded(library: Any, *args: Any, **kwargs: Any) -> Any:
            drawing = _drawing(library)  # loading renames what is in it
            functions = original(library, *args, **kwargs)
            for name in drawing:
                functions[name]._call_flat = self._named_call(name, functions[name]._call_flat)
            return functions

    def _watch_graphs(self) -> None:
        """See sessions on graphs that draw, and graphs that draw which are imported into functions."""
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
    """Return the names of the functions of a library in which there are stateful random ops,
    or calls of such functions."""
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
