"""JAX's private names that the adapter uses; each is looked up when the adapter is made.

A JAX version that lacks one, or has it with other parameters, is refused: the adapter relies on their behavior.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any, Final

import jax
from jax._src import core, pjit, sharding_impls, source_info_util
from jax._src.interpreters import partial_eval
from jax._src.mesh import get_concrete_mesh

from detrain.base.errors import FrameworkUnsupported

_WANTED: Final = "install jax==0.10.2, or 0.12.0 on Python 3.12"
_FLAT_TREES: Final = "jax._src.flattree"
_OF_TRACE: Final = ("fun", "ji", "ctx_mesh", "dbg", "avals", "args", "kwargs")
_OF_CALL: Final = (
    *("args", "jaxpr", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "name"),
    *("keep_unused", "inline", "compiler_options_kvs"),
)


def _other_way(does: str) -> FrameworkUnsupported:
    return FrameworkUnsupported(f"JAX {jax.__version__} {does} in another way than this detrain knows", _WANTED)


def _found(module: Any, name: str, does: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise _other_way(does)
    return found


Var: Final = _found(core, "Var", "names the values of functions")
"""The class of a jaxpr's variables, for making new ones."""
_flat_trees: Final[Any] = importlib.import_module(_FLAT_TREES) if importlib.util.find_spec(_FLAT_TREES) else None
"""The module that describes the inputs and outputs of a `scan`, from JAX 0.11 on."""
_is_clean: Final = _found(core, "trace_state_clean", "traces functions")
UNSPECIFIED: Final = _found(sharding_impls, "UNSPECIFIED", "says what is on which device")
"""A sharding that the compiler chooses."""


def trace_of_jit() -> Any:
    """Return JAX's function that traces a function to compile. Raises FrameworkUnsupported."""
    return _checked("_trace_for_jit", _OF_TRACE, "traces functions")


def replace_trace_of_jit(traced: Any) -> None:
    """Have another function trace the functions to compile."""
    pjit._trace_for_jit = traced


def call_of_jit() -> Any:
    """Return JAX's function that runs a compiled function that C has not run before. Raises FrameworkUnsupported."""
    return _checked("_pjit_call_impl_python", _OF_CALL, "calls compiled functions")


def replace_call_of_jit(called: Any) -> None:
    """Have another function run them. It returns the outputs, then the function that C calls from then on, or None."""
    pjit._pjit_call_impl_python = called


def trace_of_bodies() -> Any:
    """Return JAX's function that traces all functions, also bodies of loops. Raises FrameworkUnsupported."""
    trace: Any = getattr(partial_eval, "trace_to_jaxpr", None)
    if not hasattr(trace, "evict_weakref"):
        raise _other_way("keeps the traces of functions")
    return trace


def replace_trace_of_bodies(traced: Any) -> None:
    """Have another function trace all functions; `jax.jit` reads its attribute `evict_weakref`."""
    traced.evict_weakref = partial_eval.trace_to_jaxpr.evict_weakref
    partial_eval.trace_to_jaxpr = traced


def parts_of_scan(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many of the inputs of a `scan` are constants, and how many it carries from turn to turn."""
    if _flat_trees is None:
        return params["num_consts"], params["num_carry"]
    constants, carry, _rows = params["ft_in"].unpack()
    return len(constants), len(carry)


def wider_scan(params: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the changed parameters of a `scan` that carries `count` values more, behind the others."""
    if _flat_trees is None:
        return {"num_carry": params["num_carry"] + count}
    more, pack = _flat_trees.nones(count), _flat_trees.pack
    (constants, carry, rows), (carried, stacked) = params["ft_in"].unpack(), params["ft_out"].unpack()
    return {"ft_in": pack((constants, (carry, more), rows)), "ft_out": pack(((carried, more), stacked))}


def mesh_that_is_set() -> Any:
    """Return the mesh that `jax.set_mesh` has set; an empty one where there is none."""
    return get_concrete_mesh()


def is_traced() -> bool:
    """Return whether a function is being traced or transformed (`jit`, `grad`, `vmap`, …) on this thread."""
    return not _is_clean()


def transformations() -> str:
    """Return the transformations around the call that JAX runs, as its name stack shows them: `transpose(jvp())`."""
    return str(source_info_util.current().name_stack)


def _checked(name: str, parameters: tuple[str, ...], does: str) -> Any:
    found = _found(pjit, name, does)
    if tuple(inspect.signature(found).parameters) != parameters:
        raise _other_way(does)
    return found
