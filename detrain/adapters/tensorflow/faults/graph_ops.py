"""One op of one graph, with what sites, measures and gradients note of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from detrain.adapters.tensorflow.faults.op_operands import NO_ARITHMETIC
from detrain.faults.sites import CONTRACTIONS, Role, Stage, places_of


@dataclass(slots=True)
class Taken:
    """What an op is about to take in, to store it or to decide by it: as if it were what another op gives to that one
    alone. So it can be hit, though the op has no output, or is not to be run twice.
    """

    type: str
    graph: Any
    name: str
    """As no op has it."""
    outputs: list[Any]

    @property
    def inputs(self) -> list[Any]:
        """The same."""
        return self.outputs


@dataclass(slots=True)
class Op:
    """One op of one graph, as it was made."""

    key: str
    """The site's name."""
    function: str
    replica: int
    layer: str
    stage: Stage
    op: Any
    """TensorFlow's, or a `Taken`."""
    roles: dict[int, Role] = field(default_factory=dict)
    """Which gradient an output is."""
    is_turned: bool = False
    """Whether its weight comes before its input: as the program has written it (`W @ x`), or, in gradients of products
    with a transposed matrix, as TensorFlow has exchanged them."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """Hidden variables that take the operands' shapes when the graph runs, where tracing does not tell them."""
    signature: str = ""
    """Of the site, where sites are listed."""
    digest: Any = None
    """Hidden variable that takes a digest of the outputs when the graph runs."""


def maker_of(grad: Any, made: list[Op]) -> Op | None:
    """Return the op of a gradient function that a gradient comes from: the last contraction on its way,
    or the op itself."""
    by_name = {each.op.name: each for each in made}
    tensor, last = grad, None
    while tensor.op.name in by_name or tensor.op.type in ("Reshape", "Identity", "IdentityN", "Snapshot", "Sum", "Cast"):
        found = by_name.get(tensor.op.name)
        if found is not None and (last is None or found.op.type in CONTRACTIONS):
            last = found
        if (found is not None and found.op.type in CONTRACTIONS) or not tensor.op.inputs:
            break
        tensor = tensor.op.inputs[-1 if tensor.op.type == "IdentityN" else 0]
    return last


def is_turned(found: Op, role: Role, made: list[Op], upstream: Iterable[Any]) -> bool:
    """Return whether a gradient's op has its weight before its input: dY is the input of dX, and the weight of dW."""
    if found.op.type not in CONTRACTIONS or len(found.op.inputs) < 2:
        return False
    given = {(tensor.op.name, tensor.value_index) for tensor in upstream if isinstance(tensor, tf.Tensor)}
    names = {each.op.name for each in made}

    def is_given(tensor: Any) -> bool:
        if (tensor.op.name, tensor.value_index) in given:
            return True
        return (tensor.op.name in names or tensor.op.type in NO_ARITHMETIC) and any(map(is_given, tensor.op.inputs))

    first, second = (is_given(found.op.inputs[index]) for index in places_of(found.op.type))
    return (second and not first) if role == "grad_in" else (first and not second)
