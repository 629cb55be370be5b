"""The instruments of all frameworks of a process as one: the fault is in one framework, and each is asked.

A fault in memory is done when it is armed, before the step's body; no op waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detrain.adapters.instruments import Also, Instruments, StepSeries
from detrain.base.digest import Array
from detrain.faults.experiment import UNARMED, Bounds, Firing, Injection
from detrain.faults.sites import Site


class _SeriesTogether(StepSeries):
    """The losses of several frameworks added up, and the metrics of all."""

    def __init__(self, sides: Sequence[Instruments]) -> None:
        self._sides = sides

    def begin(self) -> None:
        """Prepare all series, as the first step is about to run."""
        for each in self._sides:
            each.series.begin()

    def has_loss(self) -> bool:
        """Return whether any framework has taken a gradient since the last `read`, or one never takes any."""
        return any(each.series.has_loss() for each in self._sides)

    def read(self) -> dict[str, float]:
        """Return loss and metrics; the losses of several frameworks are added up."""
        found: dict[str, float] = {}
        for each in self._sides:
            series = each.series.read()
            loss = [losses["loss"] for losses in (found, series) if "loss" in losses]
            found |= series | ({"loss": sum(loss)} if loss else {})
        return found

    def state(self) -> object:
        """Return the memory of each framework's series."""
        return [each.series.state() for each in self._sides]

    def set_state(self, state: object) -> None:
        """Restore the memory of each framework's series; one that was added since stays as it is."""
        for each, remembered in zip(self._sides, state if isinstance(state, list) else (), strict=False):
            each.series.set_state(remembered)


class InstrumentsTogether:
    """The instruments of all frameworks. See `detrain.adapters.instruments.Instruments`."""

    def __init__(self, sides: Sequence[Instruments], injection: Injection | None, also: Also = ()) -> None:
        self._sides = sides
        self.series: StepSeries = _SeriesTogether(sides)
        self._in_memory: list[Injection] = []
        self._struck: Firing | None = None
        if injection is not None:
            self.select(injection, also)

    @property
    def is_part_of_steps(self) -> bool:
        """Whether any framework puts sites into steps."""
        return any(each.is_part_of_steps for each in self._sides)

    def begin_step(self) -> None:
        """Begin a step in each framework."""
        for each in self._sides:
            each.begin_step()

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Take up an injection, and the others in the same steps: either all or none of them are in memory."""
        self._in_memory = [each for each in (injection, *(other for other, _ in also)) if each.is_in_memory]
        self._struck = None
        for each in self._sides:
            each.select(injection, () if self._in_memory else also)

    def arm(self, occurrence: int) -> None:
        """Arm the fault at its site; a fault in memory is done at once."""
        if not self._in_memory:
            for each in self._sides:
                each.arm(occurrence)
            return
        if occurrence == UNARMED:
            return
        found = [self.strike(each) for each in self._in_memory]
        if found[0] is not None and None not in found:
            turns = self._struck.count if self._struck is not None else 0
            self._struck = msgspec.structs.replace(found[0], count=turns + 1)

    def disarm(self) -> None:
        """Disarm the fault."""
        for each in () if self._in_memory else self._sides:
            each.disarm()

    def is_placed(self) -> bool:
        """Return whether the site is in place."""
        return any(each.is_placed() for each in self._sides)

    def firing(self) -> Firing | None:
        """Return the corruption that the fault has done so far."""
        if self._in_memory:
            return self._struck
        return next((found for each in self._sides if (found := each.firing()) is not None), None)

    def is_unarmed_equal(self) -> bool | None:
        """Return whether the site without a fault leaves the program's bits as they are; None: not tested."""
        return next((found for each in self._sides if (found := each.is_unarmed_equal()) is not None), None)

    def memory(self) -> list[Site]:
        """Return the sites in memory of all frameworks."""
        return [site for each in self._sides for site in each.memory()]

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of a variable of any framework; None if none has it."""
        return next((found for each in self._sides if (found := each.strike(injection)) is not None), None)

    def outputs(self) -> list[Array]:
        """Return the outputs of all frameworks' forward passes."""
        return [output for each in self._sides for output in each.outputs()]

    def sites(self) -> list[Site]:
        """Return the sites of all frameworks, first those of ops, then those in memory."""
        return [*(site for each in self._sides for site in each.sites()), *self.memory()]

    def ranges(self) -> dict[str, Bounds]:
        """Return the bounds of all frameworks' modules, by name."""
        return {name: bounds for each in self._sides for name, bounds in each.ranges().items()}

    def digests(self) -> list[tuple[str, int, int]]:
        """Return the digests of all frameworks' ops."""
        return [digest for each in self._sides for digest in each.digests()]
