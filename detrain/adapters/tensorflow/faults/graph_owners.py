"""The program's function and the replica that a graph belongs to: parts of a site's name.

TensorFlow's numbers in names depend on earlier traces; names here do not, so that a site has the same name in every
run.
"""

from __future__ import annotations

import re
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util_v2

_LOADERS: Final = (
    "detrain_own",
    "Dataset_",
    "_next_func",
    "_remote_next_func",
    "_init_func",
    "_remote_init_func",
    "_finalize_func",
)
"""The beginnings of the names of functions of tf.data and of detrain's own functions."""
_BODY_OVER_DATA: Final = "Dataset_scan_scan_body"
"""The beginning of the name of a tf.data function that is the body of a loop in a compiled function."""
_PARTS: Final = (
    *(control_flow_util_v2.CondBranchFuncGraph, control_flow_util_v2.WhileBodyFuncGraph, control_flow_util_v2.WhileCondFuncGraph),
)
_NUMBER: Final = re.compile(r"(_\d+)+$")
_NUMBERS: Final = re.compile(r"_\d+(?=_|$)")
_REPLICA: Final = re.compile(r"\breplica_(\d+)/")


def plain_scope(scope: str) -> str:
    """Return a name scope without TensorFlow's numbers, which make it unique and depend on earlier traces."""
    parts = _REPLICA.sub("", f"{scope}/").split("/")
    return "/".join(_NUMBER.sub("", part) for part in parts if part not in ("", "gradient_tape"))


def replica_of(graph: Any) -> int:
    """Return the replica whose step this thread is tracing; 0 if there are no replicas."""
    replica = getattr(tf.distribute.get_replica_context(), "_replica_id_in_sync_group", 0)
    return replica if isinstance(replica, int) else _named_replica(f"{graph.get_name_scope()}/")


def _named_replica(scope: str) -> int:
    match = _REPLICA.search(scope)
    return int(match[1]) if match else 0


def trace_of(graph: Any) -> Any:
    """Return the graph of the whole trace that a graph (a branch, a loop's body) is a part of."""
    while _is_body_over_data(graph) or getattr(graph.outer_graph, "detrain_function", None) == graph.detrain_function:
        graph = graph.outer_graph
    return graph


def _is_body_over_data(graph: Any) -> bool:
    """Return whether a tf.data function is the body of a compiled function's loop over a set, not a part of the set."""
    return isinstance(graph.outer_graph, func_graph.FuncGraph) and str(graph.name).startswith(_BODY_OVER_DATA)


def function_of(graph: Any) -> str | None:
    """Return the name of the function that a graph belongs to, the same in every run.

    None outside of functions, and in functions of loaders.
    """
    outer, owned = graph, graph
    while isinstance(outer, func_graph.FuncGraph):
        if _is_body_over_data(outer):
            owned = outer.outer_graph
        elif str(outer.name).startswith(_LOADERS):
            return None
        outer = outer.outer_graph
    if outer is graph:
        return None
    owner = str(owned.detrain_function).rpartition("/")[2].rpartition(" ")[2] or "function"
    name = _NUMBER.sub("", str(graph.name)).removeprefix("Dataset_scan_")
    if isinstance(graph, _PARTS):  # layers in their names are numbered, too: k-th ops are told apart by their layer
        name = _NUMBERS.sub("", name)
    return owner if name in (owner, owner.partition(".")[0]) else f"{owner}:{name}"
