"""The profile of a program, with the choice of steps whose sites are listed, so that all kinds of steps are known."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from detrain.base.cursor import Address
from detrain.campaign.subject import Subject
from detrain.campaign.trial_log import TrialResult
from detrain.faults.population.profile import Profile, profile_of


def profile_program(subject: Subject) -> Profile:
    """Return the profile of a program's whole golden run, which is made if need be.

    Sites are listed in the first step of each phase (an optimizer may make its slots there), in the second, in the last
    of its first epoch, and in the last of each epoch of another length. All other steps are taken to be like the
    second. Steps without a loss (they fill a buffer), beside others that have one, are chosen in the same way by
    themselves. Raises FaultInvalid if nothing can be drawn.
    """
    subject.sites()  # before the golden run: fails early
    golden = subject.whole()
    steps = sorted(cursor for cursor in golden.by_cursor() if cursor[2] >= 0)
    idle = idle_steps(golden)
    # The first step's sites are listed after it, and so with the slots that optimizers make in it.
    makes_slots = {steps[0], next(cursor for cursor in steps if cursor not in idle)}
    listed = []
    for at, like_it in representatives(steps, idle):
        sites = subject.sites(None if at == steps[0] else at)
        if at in makes_slots:
            sites = [site for site in sites if (site.stage, site.op) != ("memory", "slot")]
        listed.append((at, sites, like_it))
    return profile_of(subject.program.name, subject.arguments, listed)


def idle_steps(golden: TrialResult) -> frozenset[Address]:
    """Return the steps of a golden run that have no loss; none if no step has one."""
    steps = {cursor: "loss" in step.series for cursor, step in golden.by_cursor().items() if cursor[2] >= 0}
    return frozenset(cursor for cursor, has_loss in steps.items() if not has_loss) if any(steps.values()) else frozenset()


def representatives(steps: Sequence[Address], idle: Collection[Address] = frozenset()) -> Iterator[tuple[Address, list[Address]]]:
    """Yield the steps whose sites are to be listed, each with the steps that are taken to be like it: `idle` steps are
    not like others.

    Together these are all steps, each once.
    """
    for phase, is_idle in itertools.product(sorted({cursor[0] for cursor in steps}), (False, True)):
        of_phase = [cursor for cursor in steps if cursor[0] == phase and (cursor in idle) == is_idle]
        if not of_phase:
            continue
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
