"""The sides of an experiment in a process with several frameworks: the fault is in one of them, all are asked."""

from __future__ import annotations

from collections.abc import Sequence

from detrain.adapters.api import Instruments
from detrain.faults.experiment import Firing, Injection
from detrain.faults.sites import Site


class InstrumentsTogether:
    """See `detrain.adapters.api.Instruments`."""

    def __init__(self, sides: Sequence[Instruments]) -> None:
        self._sides = sides

    @property
    def is_part_of_steps(self) -> bool:
        """Whether any puts sites into steps."""
        return any(each.is_part_of_steps for each in self._sides)

    def begin_step(self) -> None:
        """A step begins."""
        for each in self._sides:
            each.begin_step()

    def select(self, injection: Injection) -> None:
        """Take up an injection."""
        for each in self._sides:
            each.select(injection)

    def arm(self, occurrence: int) -> None:
        """Have the site hit."""
        for each in self._sides:
            each.arm(occurrence)

    def disarm(self) -> None:
        """Have it hit no more."""
        for each in self._sides:
            each.disarm()

    def is_placed(self) -> bool:
        """Return whether the site is in place."""
        return any(each.is_placed() for each in self._sides)

    def firing(self) -> Firing | None:
        """Return what the fault has done so far."""
        return next((found for each in self._sides if (found := each.firing()) is not None), None)

    def begin_series(self) -> None:
        """The first step is about to run."""
        for each in self._sides:
            each.begin_series()

    def has_trained(self) -> bool:
        """Return whether any has taken a gradient, or none ever does."""
        return any(each.has_trained() for each in self._sides)

    def series(self) -> dict[str, float]:
        """Return loss and metrics; losses of several are added up."""
        found: dict[str, float] = {}
        for each in self._sides:
            series = each.series()
            loss = [losses["loss"] for losses in (found, series) if "loss" in losses]
            found |= series | ({"loss": sum(loss)} if loss else {})
        return found

    def state(self) -> object:
        """Return what each remembers."""
        return [each.state() for each in self._sides]

    def set_state(self, state: object) -> None:
        """Have each remember what it did; one that has come since remembers nothing."""
        for each, remembered in zip(self._sides, state if isinstance(state, list) else (), strict=False):
            each.set_state(remembered)

    def sites(self) -> list[Site]:
        """Return the sites of all."""
        return [site for each in self._sides for site in each.sites()]

    def digests(self) -> list[tuple[str, int, int]]:
        """Return the digests of all."""
        return [digest for each in self._sides for digest in each.digests()]
