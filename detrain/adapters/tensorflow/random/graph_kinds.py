"""The tests by which an op gets a counter: is it a stateful random op, and which function is being traced? And the
Python functions of ops, in all places where a program may find them: in their modules, and in `tf.raw_ops`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import func_graph, op_def_registry, ops

BUILDING_GRAPH: Final = "detrain_build"
"""The name of the graph in which layers are built ahead, which nothing runs."""
_NEVER_RUN: Final = re.compile(rf"{re.escape(BUILDING_GRAPH)}|keras_graph|(.*_)?scratch_graph(_\d+)?")
"""Names of graphs that nothing runs. A traced function names its graph: a wider pattern may match one."""


@functools.lru_cache(maxsize=4096)
def is_random(op: str) -> bool:
    """Return whether an op with this name draws random numbers and keeps a state of its own."""
    definition = op_def_registry.get(op)
    return definition is not None and definition.is_stateful and any(attribute.name == "seed" for attribute in definition.attr)


def traced_function() -> Any:
    """Return the outermost function graph being traced, or None in eager code and in the functions of tf.data.

    The graph in which a layer is built ahead does not count: nothing runs it, and functions traced inside of it were
    first traced in eager code. Nor do the graphs in which Keras finds out shapes, any number of times: their draws must
    not be counted among a function's.
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
    """Replace an op's function in a module, and the functions made from it in `tf.raw_ops`."""
    for holder, held_as, held in functions_of(re.escape(name), module):

        @functools.wraps(held)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        setattr(holder, held_as, replaced)


def functions_of(pattern: str, module: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions of ops in a module, and those made from them in `tf.raw_ops` and its versions for older
    programs.

    Each is (module that holds it, name there, function). `pattern` is that of the functions' names in the module.
    """
    modules = (module, tf.raw_ops, tf.compat.v1.raw_ops, tf.compat.v2.raw_ops)
    found = [(each, name, op) for each in modules for name, op in vars(each).items()]
    return [each for each in found if re.fullmatch(pattern, getattr(each[2], "__name__", ""))]
