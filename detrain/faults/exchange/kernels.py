"""A profile as SASSIFI and NVBitFI see a program: launches of kernels, and dynamic instructions numbered in a group.

A kernel is a compiled function (with PyTorch, the step); its k-th launch is the k-th step that runs it. An instruction
is an element of an output: of a launch they are numbered by site, in the order of names, then by run of the site,
replica and element.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.faults.population.profile import Output, Profile
from detrain.faults.sites import STAGES

STEP: Final = "step"
"""The kernel of sites whose names have no function."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel."""

    kernel: str
    count: int
    """How many launches of it there were before."""
    at: Address
    kind: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One element of one run of an output."""

    output: Output
    at: Address
    occurrence: int
    replica: int
    element: int
    is_dead: bool = False
    """Whether nothing depends on it, so that a fault there is masked for certain."""


def kernel_of(site: str) -> str:
    """Return the kernel of a site, in letters that both tools take."""
    first = site.partition("/")[0]
    return STEP if first in STAGES else escaped(first)


def escaped(name: str) -> str:
    """Return a name in letters, digits and `_`: others as `_` and their code, so that no two names are one."""
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_" if found[0] != "_" else "__", name)


class Kernels:
    """The launches of a profile, with their instructions in groups: `groups_of` says which an output is of."""

    def __init__(self, profile: Profile, groups_of: Callable[[Output], frozenset[int]]) -> None:
        self._profile = profile
        self._of: dict[tuple[str, int, int], list[Output]] = {}
        """Outputs by kernel, kind of step and group."""
        kernels: dict[int, dict[str, None]] = {}
        for output in sorted((*profile.outputs, *profile.dead), key=lambda each: (each.kind, each.site.name)):
            kernel = kernel_of(output.site.name)
            kernels.setdefault(output.kind, {})[kernel] = None
            for group in groups_of(output):
                self._of.setdefault((kernel, output.kind, group), []).append(output)
        self._dead = {(output.kind, output.site.name) for output in profile.dead}
        self._kernels = {kind: list(names) for kind, names in kernels.items()}
        self._ends: dict[tuple[str, int, int], list[int]] = {
            key: list(itertools.accumulate(each.in_step for each in outputs)) for key, outputs in self._of.items()
        }

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """All launches of the golden run, in order."""
        return tuple(self._launches())

    def _launches(self) -> Iterator[Launch]:
        steps = sorted(
            ((phase, epoch, batch), number)
            for number, kind in enumerate(self._profile.kinds)
            for phase, epoch, first, end in kind.runs
            for batch in range(first, end)
        )
        counts: dict[str, int] = {}
        for at, kind in steps:
            for kernel in self._kernels.get(kind, []):
                yield Launch(kernel, counts.get(kernel, 0), at, kind)
                counts[kernel] = counts.get(kernel, 0) + 1

    @cached_property
    def _by_count(self) -> dict[tuple[str, int], Launch]:
        return {(launch.kernel, launch.count): launch for launch in self.launches}

    @cached_property
    def _by_step(self) -> dict[tuple[str, Address], Launch]:
        return {(launch.kernel, launch.at): launch for launch in self.launches}

    def total(self, launch: Launch, group: int) -> int:
        """Return how many instructions of a group a launch has."""
        ends = self._ends.get((launch.kernel, launch.kind, group))
        return ends[-1] if ends else 0

    def outputs(self, launch: Launch, group: int) -> list[Output]:
        """Return the outputs of a group in a launch."""
        return self._of.get((launch.kernel, launch.kind, group), [])

    def instruction(self, kernel: str, count: int, group: int, number: int) -> Instruction:
        """Return an instruction by its number in a group in a launch.

        Raises FaultInvalid for a launch or number that is none. (Upstream's random numbers go up to the total itself.)
        """
        launch = self._by_count.get((kernel, count))
        if launch is None:
            raise FaultInvalid(
                f"the profile has no launch {count} of kernel {kernel!r}",
                "lists fit the profile that they were made from alone: export it with `detrain profile --format`",
            )
        total = self.total(launch, group)
        if not 0 <= number < total:
            raise FaultInvalid(
                f"launch {count} of kernel {kernel!r} has {total} instructions of group {group}, got number {number}",
                "numbers are from 0 to one less than that; upstream's lists may hold one more: leave the line out",
            )
        key = kernel, launch.kind, group
        place = bisect.bisect_right(self._ends[key], number)
        output = self._of[key][place]
        rest = number - (self._ends[key][place - 1] if place else 0)
        run, element = divmod(rest, output.elements)
        occurrence, replica = divmod(run, output.site.replicas)
        is_dead = (output.kind, output.site.name) in self._dead
        return Instruction(output, launch.at, occurrence, replica, element, is_dead)

    def number(self, site: str, at: Address, group: int, *, occurrence: int, replica: int, element: int) -> tuple[str, int, int]:
        """Return the kernel, the launch and the number of an instruction. Raises FaultInvalid for one that is none."""
        kernel = kernel_of(site)
        launch = self._by_step.get((kernel, at))
        if launch is not None:
            key = kernel, launch.kind, group
            for place, output in enumerate(self._of.get(key, [])):
                if output.site.name == site:
                    before = self._ends[key][place - 1] if place else 0
                    run = occurrence * output.site.replicas + replica
                    return kernel, launch.count, before + run * output.elements + element
        raise FaultInvalid(f"{site!r} is not in group {group} of step {at} of the profile", "give the profile of the campaign")
