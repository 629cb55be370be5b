"""The effect of a fault on a tensor: the oracle, by the definition of each kind."""

from __future__ import annotations

from detrain.faults.bits import Patterns
from detrain.faults.plan import Kind, Plan


def applied(plan: Plan, bits: Patterns) -> Patterns:
    """Return the patterns of a tensor, of any shape, after the fault."""
    plan.check(bits.size)
    golden = bits.reshape(-1)
    hit, operands = golden[plan.positions], plan.operands
    after = {
        Kind.XOR: lambda: hit ^ operands,
        Kind.AND: lambda: hit & operands,
        Kind.OR: lambda: hit | operands,
        Kind.SET: lambda: operands,
        Kind.COPY: lambda: golden[operands],
    }
    result = golden.copy()
    result[plan.positions] = after[plan.kind]()
    return result.reshape(bits.shape)
