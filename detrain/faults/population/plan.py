"""The plan of a campaign: from a number to a trial, by a pure function of the profile, the choice and the seed.

Numbers go round the strata so that each prefix of the plan has each stratum's share of trials, to within a few: a
campaign that is stopped, or looked at, is as good a sample as one that is whole. A longer plan begins with the shorter
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.plan import trial_rng
from detrain.faults.population.address import draw_address
from detrain.faults.population.facts import ONCE, Coming, Planned, Told, planned
from detrain.faults.population.frame import Cell, Frame, Selection, frame_of
from detrain.faults.population.profile import Profile
from detrain.faults.sites import op_and_output

VERSION: Final = 1
LEAST: Final = 5
"""Trials that a stratum gets at least, where there are enough for all: of fewer nothing can be said."""
_DRAWS: Final = 100


class SampledPlan(msgspec.Struct, frozen=True, dict=True):
    """A campaign's trials, drawn from a profile."""

    profile: Profile
    choice: Selection
    count: int
    allocation: tuple[tuple[str, float], ...]
    """By stratum, the share of the trials; together 1."""
    after: int | None = None
    """Steps that a trial runs from its fault on; None: to the program's end."""
    least: int = 0
    """Steps that it runs on at least, though its loss is not finite."""
    coming: Coming = ONCE

    @property
    def digest(self) -> str:
        """What decides about each trial (xxh3-128, hex). The count does not: a longer plan is the same, and goes on."""
        parts = VERSION, self.profile.digest, self.choice, self.allocation, self.after, self.least, self.coming
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))

    @cached_property
    def frame(self) -> Frame:
        """What is drawn from."""
        return frame_of(self.profile, self.choice)

    @cached_property
    def strata(self) -> dict[str, float]:
        """By stratum, its share of the population."""
        return dict(zip(self.frame.strata, self.frame.shares().tolist(), strict=True))

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """The stratum of each number."""
        return in_turn(np.array([share for _, share in self.allocation]), self.count)

    @cached_property
    def _cells(self) -> dict[str, tuple[list[Cell], NDArray[np.float64]]]:
        found: dict[str, list[Cell]] = {name: [] for name in self.frame.strata}
        for cell in self.frame.cells:
            found[cell.stratum].append(cell)
        return {name: (cells, np.cumsum([cell.share for cell in cells])) for name, cells in found.items()}

    def trial(self, number: int) -> Planned:
        """Return what is known of a trial, and its experiment. Raises FaultInvalid for a number that is not in it."""
        if not 0 <= number < self.count:
            raise FaultInvalid(f"there is no trial {number} in a plan of {self.count}", "numbers are from 0")
        stratum, drawn_share = self.allocation[int(self._order[number])]
        cells, ends = self._cells[stratum]
        rng = trial_rng(self.choice.seed, number)
        for _ in range(_DRAWS):
            chosen = int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
            cell = cells[min(chosen, len(cells) - 1)]
            output, site = cell.output, cell.output.site
            kind = self.profile.kinds[output.kind]
            at = kind.cursor(int(rng.integers(kind.steps)))
            worker = int(rng.integers(site.replicas))
            occurrence = int(rng.integers(site.executions))
            try:
                is_apart = self.coming.among == "step"
                injection = _drawn(cell, worker, rng, 1 if is_apart else self.coming.at_once)
                also = self._others(cell, rng) if is_apart else ()
            except FaultInvalid as error:
                why = error  # a limited fault that no output sees
                continue
            return planned(
                number,
                site,
                injection,
                at,
                occurrence,
                model=cell.model.name,
                after=self.after,
                least=self.least,
                group=int(cell.group) if cell.group is not None else -1,
                mode=cell.mode,
                stratum=stratum,
                weight=self.strata[stratum] / drawn_share,
                coming=self.coming,
                seed=self.choice.seed,
                also=also,
            )
        raise FaultInvalid(f"trial {number} cannot be drawn from {stratum!r}: {why.what}", why.todo)

    def _others(self, first: Cell, rng: np.random.Generator) -> list[tuple[Injection, int]]:
        """Draw what is hit with a fault: other ops of a step of its kind, each as likely as in the population.

        Raises FaultInvalid where there are too few.
        """
        cells = [cell for cell in self.frame.cells if cell.output.kind == first.output.kind]
        ops = [op_and_output(cell.output.site.name)[0] for cell in cells]
        chances, taken = np.array([cell.share for cell in cells]), {op_and_output(first.output.site.name)[0]}
        found: list[tuple[Injection, int]] = []
        while len(found) + 1 < self.coming.at_once:
            chances[[op in taken for op in ops]] = 0
            if not chances.any():
                raise FaultInvalid(
                    f"{self.coming.at_once} faults in tensors of their own do not fit the {len(taken)} of a step",
                    "give a smaller --at-once, or choose more sites",
                )
            chosen = int(rng.choice(len(cells), p=chances / chances.sum()))
            site = cells[chosen].output.site
            taken.add(ops[chosen])
            injection = _drawn(cells[chosen], int(rng.integers(site.replicas)), rng, 1)
            found.append((injection, int(rng.integers(site.executions))))
        return found

    def told(self, number: int) -> Told:
        """Return that nothing is known beforehand: what is, is counted, and not drawn."""
        return ""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return None: a fault that did not fire is of a step that is not as the profile has it. It is counted, not
        drawn again, because what would come in its place is of another part of the population.
        """
        return None


def _drawn(cell: Cell, worker: int, rng: np.random.Generator, at_once: int) -> Injection:
    if cell.mode == "IOA":
        return draw_address(cell.output.site, cell.model.name, worker, rng)
    return draw_injection(cell.output.site, cell.model, worker, rng, at_once)


def sampled_plan(
    profile: Profile,
    choice: Selection,
    count: int,
    *,
    after: int | None = None,
    least: int = 0,
    shares: Mapping[str, float] | None = None,
    coming: Coming = ONCE,
) -> SampledPlan:
    """Return a plan of so many trials.

    They are shared out among the strata as these are in the population, or as `shares` says (by a pilot's); each
    stratum gets `LEAST` where there are enough. Raises FaultInvalid, UsageError.
    """
    if count < 1:
        raise FaultInvalid(f"a plan of {count} trials", "give 1 or more")
    frame = frame_of(profile, choice)
    wanted = dict(zip(frame.strata, frame.shares().tolist(), strict=True))
    if shares is not None:
        if set(shares) != set(wanted):
            odd = sorted(set(shares) ^ set(wanted))
            raise FaultInvalid(f"the pilot's strata are others: {', '.join(odd[:4])}", "plan the pilot with the same options")
        wanted = {name: shares[name] for name in wanted}
    return SampledPlan(profile, choice, count, tuple(_with_least(wanted, count).items()), after, least, coming)


def _with_least(shares: Mapping[str, float], count: int) -> dict[str, float]:
    """Return shares of which each is enough for `LEAST` trials, where that can be; together 1."""
    total = sum(shares.values())
    known = {name: share / total for name, share in shares.items()}
    floor = LEAST / count
    if floor * len(known) > 1:
        floor = 0.0
    low: set[str] = set()
    while True:  # those above share what the ones on the floor leave
        rest = 1 - floor * len(low)
        above = sum(share for name, share in known.items() if name not in low)
        more = {name for name, share in known.items() if name not in low and share * rest / above < floor}
        if not more:
            return {name: floor if name in low else share * rest / above for name, share in known.items()}
        low |= more


def in_turn(shares: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return for each number its stratum: the j-th trial of one with share q stands at (j - 1/2) / q."""
    owners, places = [], []
    for stratum, share in enumerate(shares):
        if share <= 0:
            continue
        many = int(np.ceil(count * share)) + 1
        owners.append(np.full(many, stratum, np.intp))
        places.append((np.arange(many) + 0.5) / share)
    owner, place = np.concatenate(owners), np.concatenate(places)
    return np.asarray(owner[np.lexsort((owner, place))][:count])
