"""What is said of losses: of the state that the loop makes, what no checkpoint holds. They are texts, `PLACE (KIND:
WHY)`, also in the checkpoint; how one ends says what it means for a resume.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

OF_GRAPH: Final = "the graph behind it"
"""What a checkpoint does not hold of a tensor that was computed: its value it does. A resumed run is refused where
something goes backward through it."""
HARMLESS: Final = ", harmless"
"""How what is said of a loss ends, within its brackets, where a resumed run goes on without."""
OF_OUTPUT: Final = f", of an output{HARMLESS}"
"""The same of a part of an object that only shows or records: nobody need hear of it."""
LOADS_TRAINED: Final = "loads move it on, and it holds what bodies train"
"""Why loading the same batches again may not bring an object of a library to where it was."""
LOADS_READ: Final = "loads read it, and bodies change it"
"""Why the batches before a cut may be others when they are loaded again."""
OF_CACHE: Final = "its kernels follow from what was compiled before, or from measured times"
"""Why compiled code may be other code where the cache is not that of the first run."""
PULLED_SINCE: Final = ", and it was pulled since"
"""Ends what is named when the generator has yielded by what has changed: what it yields again may be other batches."""
_ON_A_CONDITION: Final = (PULLED_SINCE, *(f"{why})" for why in (LOADS_TRAINED, LOADS_READ, OF_CACHE)))
"""How losses end where what the resumed run loads or compiles decides: it is compared with the first run's."""


def is_harmless(loss: str) -> bool:
    """Return whether a resumed run goes on without what was lost."""
    return loss.endswith(f"{HARMLESS})")


def place_of_loss(loss: str) -> str:
    """Return the place of what was lost."""
    return loss.partition(" (")[0]


def is_doubtful(loss: str) -> bool:
    """Return whether it is not certain that a run resumes from a checkpoint without what was lost."""
    return not is_harmless(loss)


def is_refused(loss: str) -> bool:
    """Return whether a run does not resume from a checkpoint without what was lost: it is neither harmless, nor does
    what the run loads show whether it matters.
    """
    return not is_harmless(loss) and not loss.endswith(_ON_A_CONDITION)


def conditional(losses: Iterable[str]) -> list[str]:
    """Return those of the losses of a checkpoint of which what a resumed run loads shows whether they matter."""
    return [loss for loss in losses if loss.endswith(_ON_A_CONDITION)]


def lacking(losses: Iterable[str], allowed: Container[str]) -> list[str]:
    """Return those of the losses of a checkpoint for which a resume is refused."""
    return [loss for loss in losses if is_refused(loss) and place_of_loss(loss) not in allowed]
