"""Digests of what each equation of a function gives, taken where it is computed: sums of bit patterns, each with a
weight of its own. In a loop those of all turns are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import xxhash
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from detrain.adapters.jax.faults.equations import Equation, Path, dtype_named
from detrain.adapters.jax.faults.rewriting import Changes, Edit, call_of, rewritten
from detrain.adapters.jax.named_arrays import value_of
from detrain.adapters.jax.private_names import Var
from detrain.faults.sites import output_name

_TURN: Final = np.uint32(31)
_WEIGHT: Final = np.uint32(2654435761)


def digest_of_input(value: Any) -> int:
    """Return the digest of an input of a function."""
    parts = [value_of(each.data) for each in value.addressable_shards] if isinstance(value, jax.Array) else [np.asarray(value)]
    state = xxhash.xxh3_64()
    for each in parts:
        state.update(np.ascontiguousarray(each).tobytes())
    return state.intdigest() >> 1


def with_digests(function: ClosedJaxpr, named: Sequence[tuple[str, Equation]]) -> tuple[list[str], ClosedJaxpr]:
    """Return a function with a cell that takes the digests, and the names of those, in their order."""
    names: list[str] = []
    edits: dict[Path, Edit] = {}
    for name, equation in named:
        numbers = [number for number in sorted(equation.live) if _has_bits(equation.value.outvars[number])]
        edits[equation.path] = _edit(len(names), numbers)
        names += [output_name(name, number) for number in numbers]
    return names, rewritten(function, _Digests([jax.core.ShapedArray((len(names),), np.dtype(np.uint32))], edits))


class _Digests(Changes):
    def joined(self, cells: list[Any]) -> list[Any]:
        """Return sums over the devices, each with a weight of its own."""
        return [jnp.sum(each * _weights(len(each))[:, None], 0, dtype=np.uint32) for each in cells]


def _has_bits(variable: Any) -> bool:
    name = dtype_named(variable)
    return name not in ("", "float0", "int4", "uint4", "int2", "uint2") and not name.startswith("complex")


def _edit(first: int, numbers: Sequence[int]) -> Edit:
    def put(equation: JaxprEqn, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
        if not numbers:
            return [equation], cells

        def taken(values: list[Any], cell: Any) -> Any:
            for place, value in enumerate(values, first):
                cell = cell.at[place].set(cell[place] * _TURN + _digest(value))
            return cell

        made = [Var(cells[0].aval)]
        outputs = [equation.outvars[number] for number in numbers]
        return [equation, call_of(taken, [outputs, cells[0]], made)], list(made)

    return put


def _digest(value: Any) -> Any:
    """Return the sum of the bit patterns of a value's elements, each times an odd number of its own."""
    size = value.dtype.itemsize
    if value.dtype == bool:
        bits = value.astype(np.uint32)
    else:
        bits = lax.bitcast_convert_type(value, np.dtype(f"u{min(size, 4)}")).astype(np.uint32)
    bits = bits.reshape(-1)
    return jnp.sum(bits * _weights(bits.size), dtype=np.uint32)


def _weights(count: int) -> Any:
    return (lax.iota(np.uint32, count) * _WEIGHT) | np.uint32(1)
