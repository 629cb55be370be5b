"""Which op is a stateful random op, and which function is being traced: what decides whether an op gets a counter. And
Python's functions for ops, wherever a program may find them: in their modules, and in `tf.raw_ops`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import func_graph, op_def_registry, ops

BUILDING_GRAPH: Final = "detrain_build"
"""The graph in which layers are built ahead, which nothing runs."""
_NEVER_RUN: Final = re.compile(rf"{re.escape(BUILDING_GRAPH)}|keras_graph|(.*_)?scratch_graph(_\d+)?")
"""Names of graphs. A function that is traced has its own for its graph: one more word here may be a program's."""


@functools.lru_cache(maxsize=4096)
def is_random(op: str) -> bool:
    """Return whether an op with this name draws random numbers, and keeps a state of its own."""
    definition = op_def_registry.get(op)
    return definition is not None and definition.is_stateful and any(attribute.name == "seed" for attribute in definition.attr)


def traced_function() -> Any:
    """Return the outermost function graph being traced, or None in eager code and in the functions of tf.data.

    The graph in which a layer is built ahead is none: nothing runs it, and what is traced inside of it was traced in
    eager code. Nor are those in which Keras finds out shapes, as often as it has to: the draws there must not be
    counted among a function's.
    """
    graph = ops.get_default_graph()
    outermost = None
    while isinstance(graph, func_graph.FuncGraph) and _NEVER_RUN.fullmatch(graph.name) is None:
        outermost = graph
        if str(graph.name).startswith("Dataset_"):
            return None
        graph = graph.outer_graph
    return outermost


def replace_op(module: Any, name: str, op: Callable[..., Any]) -> None:
    """Put an op in the place of a module's, and of those of `tf.raw_ops` that are made from it."""
    for holder, held_as, held in functions_of(re.escape(name), module):

        @functools.wraps(held)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        setattr(holder, held_as, replaced)


def functions_of(pattern: str, module: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions for ops in a module, and those made from them in `tf.raw_ops`,
    also of its APIs for older programs.

    The pattern is that of their names in the module. Each comes with where it is, and its name there.
    """
    modules = (module, tf.raw_ops, tf.compat.v1.raw_ops, tf.compat.v2.raw_ops)
    found = [(each, name, op) for each in modules for name, op in vars(each).items()]
    return [each for each in found if re.fullmatch(pattern, getattr(each[2], "__name__", ""))]
