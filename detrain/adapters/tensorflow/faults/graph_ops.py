"""One op of one graph, with what sites, measures and gradients note of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detrain.faults.sites import Role, Stage


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
