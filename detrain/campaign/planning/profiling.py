"""The profile of a program, with the choice of steps whose sites are listed, so that all kinds of steps are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from detrain.base.cursor import Address
from detrain.campaign.subject import Subject
from detrain.faults.population.profile import Profile, profile_of


def profile_program(subject: Subject) -> Profile:
    """Return the profile of a program's whole golden run, which is made if need be.

    Sites are listed in the first step of each phase (an optimizer may make its slots there), in the second, in the last
    of its first epoch, and in the last of each epoch of another length. All other steps are taken to be like the
    second. Raises FaultInvalid if nothing can be drawn.
    """
    # The first step's sites are listed after it, and so with the slots that optimizers make in it.
    first = [site for site in subject.sites() if (site.stage, site.op) != ("memory", "slot")]
    steps = sorted(cursor for cursor in subject.whole().by_cursor() if cursor[2] >= 0)
    listed = [(at, first if at == steps[0] else subject.sites(at), like_it) for at, like_it in representatives(steps)]
    return profile_of(subject.program.name, subject.arguments, listed)


def representatives(steps: Sequence[Address]) -> Iterator[tuple[Address, list[Address]]]:
    """Yield the steps whose sites are to be listed, each with the steps that are taken to be like it.

    Together these are all steps, each once.
    """
    for phase in sorted({cursor[0] for cursor in steps}):
        of_phase = [cursor for cursor in steps if cursor[0] == phase]
        lasts = {(*epoch, batch) for epoch, batch in _last_of_epochs(of_phase).items()} - {of_phase[0]}
        by_length: dict[int, list[Address]] = {}
        for cursor in sorted(lasts):
            by_length.setdefault(cursor[2], []).append(cursor)
        others = [cursor for cursor in of_phase[1:] if cursor not in lasts]
        for cursors in ([of_phase[0]], others, *by_length.values()):
            if cursors:
                yield cursors[0], cursors


def _last_of_epochs(steps: Iterable[Address]) -> dict[tuple[int, int], int]:
    last: dict[tuple[int, int], int] = {}
    for phase, epoch, batch in steps:
        last[phase, epoch] = max(batch, last.get((phase, epoch), 0))
    return last
