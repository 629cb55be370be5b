"""The plan of a campaign: makes a trial from its number, by a pure function of the profile, the choice and the seed.

Numbers go round the strata so that each prefix of the plan has each stratum's share of trials, to within a few. So a
campaign that is stopped, or looked at, early is as good a sample as a whole one. A longer plan begins with the shorter
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
"""The fewest trials of a stratum, if there are enough for all strata: fewer would tell nothing."""
_DRAWS: Final = 100


class SampledPlan(msgspec.Struct, frozen=True, dict=True):
    """A campaign's trials, drawn from a profile."""

    profile: Profile
    choice: Selection
    count: int
    allocation: tuple[tuple[str, float], ...]
    """The share of the trials by stratum; together 1."""
    after: int | None = None
    """Steps that a trial runs from its fault on; None: to the program's end."""
    least: int = 0
    """The fewest steps that a trial goes on if its loss becomes NaN or infinite."""
    coming: Coming = ONCE

    @property
    def digest(self) -> str:
        """Digest of all that decides about trials (xxh3-128, hex). The count does not: a longer plan has the same."""
        parts = VERSION, self.profile.digest, self.choice, self.allocation, self.after, self.least, self.coming
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))

    @cached_property
    def frame(self) -> Frame:
        """The cells from which trials are drawn."""
        return frame_of(self.profile, self.choice)

    @cached_property
    def strata(self) -> dict[str, float]:
        """The strata's shares of the population, by name."""
        return dict(zip(self.frame.strata, self.frame.shares().tolist(), strict=True))

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """The stratum of each trial, by its number."""
        return in_turn(np.array([share for _, share in self.allocation]), self.count)

    @cached_property
    def _cells(self) -> dict[str, tuple[list[Cell], NDArray[np.float64]]]:
        found: dict[str, list[Cell]] = {name: [] for name in self.frame.strata}
        for cell in self.frame.cells:
            found[cell.stratum].append(cell)
        return {name: (cells, np.cumsum([cell.share for cell in cells])) for name, cells in found.items()}

    def trial(self, number: int) -> Planned:
        """Return the facts of a trial, and its experiment. Raises FaultInvalid for a number that is not in the plan."""
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
        """Draw the faults that come with a first one, in other ops of its kind of step, as likely as in the population.

        Raises FaultInvalid if there are too few ops.
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
        """Return an empty text: faults with known results are counted, and never drawn."""
        return ""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return None: a fault that did not fire is of a step that differs from the profile. It is counted, and not
        drawn again, because a fault in its place would belong to another part of the population.
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
    """Return a plan of `count` trials.

    The strata share the trials in proportion to their population, or as `shares` says (from a pilot); each gets at
    least `LEAST` if there are enough. Raises FaultInvalid, UsageError.
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
    """Return the shares, raised so that each is enough for `LEAST` trials, if that is possible; together 1."""
    total = sum(shares.values())
    known = {name: share / total for name, share in shares.items()}
    floor = LEAST / count
    if floor * len(known) > 1:
        floor = 0.0
    low: set[str] = set()
    while True:  # those above the floor share the rest
        rest = 1 - floor * len(low)
        above = sum(share for name, share in known.items() if name not in low)
        more = {name for name, share in known.items() if name not in low and share * rest / above < floor}
        if not more:
            return {name: floor if name in low else share * rest / above for name, share in known.items()}
        low |= more


def in_turn(shares: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return the stratum of each number: the j-th trial of a stratum with share q stands at (j - 1/2) / q."""
    owners, places = [], []
    for stratum, share in enumerate(shares):
        if share <= 0:
            continue
        many = int(np.ceil(count * share)) + 1
        owners.append(np.full(many, stratum, np.intp))
        places.append((np.arange(many) + 0.5) / share)
    owner, place = np.concatenate(owners), np.concatenate(places)
    return np.asarray(owner[np.lexsort((owner, place))][:count])
