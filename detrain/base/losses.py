"""Texts of losses: state that the loop makes and that no checkpoint holds. A text is `PLACE (KIND: WHY)`, also in the
checkpoint. Its ending tells how a resume treats the loss.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

OF_GRAPH: Final = "the graph behind it"
"""The part of a computed tensor that a checkpoint does not hold; it does hold the value. A resume is refused if code
goes backward through the tensor."""
HARMLESS: Final = ", harmless"
"""Ending, inside the brackets, of a loss that does not matter to a resumed run."""
OF_OUTPUT: Final = f", of an output{HARMLESS}"
"""The same for a part of an object that only shows or records: users need not be told of it."""
LOADS_TRAINED: Final = "loads move it on, and it holds what bodies train"
"""Reason why loading the same batches again may not restore an object of a library."""
LOADS_READ: Final = "loads read it, and bodies change it"
"""Reason why the batches before a cut may differ when they are loaded again."""
OF_CACHE: Final = "its kernels follow from what was compiled before, or from measured times"
"""Reason why compiled code may differ if the cache is not that of the first run."""
PULLED_SINCE: Final = ", and it was pulled since"
"""Ending of a loss whose generator was pulled after the change: pulled again, it may yield other batches."""
_ON_A_CONDITION: Final = (PULLED_SINCE, *(f"{why})" for why in (LOADS_TRAINED, LOADS_READ, OF_CACHE)))
"""Endings of losses that matter only if a resumed run loads other batches, or compiles other code, than the first."""


def is_harmless(loss: str) -> bool:
    """Return whether a resumed run goes on without the lost state."""
    return loss.endswith(f"{HARMLESS})")


def place_of_loss(loss: str) -> str:
    """Return the place of the lost state."""
    return loss.partition(" (")[0]


def is_doubtful(loss: str) -> bool:
    """Return whether a checkpoint with this loss may fail to resume."""
    return not is_harmless(loss)


def is_refused(loss: str) -> bool:
    """Return whether a resume from a checkpoint with this loss is refused: the loss is not harmless, and no comparison
    in the resumed run shows whether it matters.
    """
    return not is_harmless(loss) and not loss.endswith(_ON_A_CONDITION)


def conditional(losses: Iterable[str]) -> list[str]:
    """Return the losses for which a comparison in the resumed run shows whether they matter."""
    return [loss for loss in losses if loss.endswith(_ON_A_CONDITION)]


def lacking(losses: Iterable[str], allowed: Container[str]) -> list[str]:
    """Return the losses for which a resume is refused, without those in places that the user allowed."""
    return [loss for loss in losses if is_refused(loss) and place_of_loss(loss) not in allowed]
