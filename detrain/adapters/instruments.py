"""A framework's side of experiments: where faults can be, how they are put in, what a step says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

from detrain.base.digest import Array
from detrain.faults.experiment import Bounds, Experiment, Firing, Injection
from detrain.faults.sites import Site, op_and_output

Also = Sequence[tuple[Injection, int]]
"""Injections in the same step as another, each at an op of its own, with the execution that is hit."""


class StepSeries(Protocol):
    """Loss and metrics of what runs."""

    def begin(self) -> None:
        """The first step of this process is about to run."""

    def has_loss(self) -> bool:
        """Return whether a gradient has been taken since the last call of `read`, or none ever is."""

    def read(self) -> dict[str, float]:
        """Return the loss and metrics of what has run since the last call."""

    def state(self) -> object:
        """Return what it remembers from step to step."""

    def set_state(self, state: Any) -> None:
        """Have it remember what it did, and forget what has been noted since."""


class Instruments(Protocol):
    """A framework's side of an experiment."""

    series: StepSeries

    @property
    def is_part_of_steps(self) -> bool:
        """Whether sites are put into steps as these are made (compiled), and stay there; else ops are watched as they
        run, in the steps where something is to be done.
        """

    def begin_step(self) -> None:
        """Count executions from here on, and note what `sites` and `digests` return."""

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Take up one of the injections that the experiments of this process have, and what is hit with it.

        Raises FaultInvalid where sites are part of steps, and several are to be hit.
        """

    def arm(self, occurrence: int) -> None:
        """Have the fault's site hit when it runs next, or so many runs later; by `UNARMED` not at all, but have it in
        place as if it were to be.
        """

    def disarm(self) -> None:
        """Have it hit no more."""

    def is_placed(self) -> bool:
        """Return whether the fault's site is in place."""

    def firing(self) -> Firing | None:
        """Return what the fault has done so far."""

    def is_unarmed_equal(self) -> bool | None:
        """Return whether what was hit last would have given the program's own bits with its site in place and no fault;
        None: nobody has looked.
        """
        return None

    def memory(self) -> list[Site]:
        """Return the variables that are there now, as sites in memory."""

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of a variable in memory; None if there is none with its name, shape and dtype."""

    def outputs(self) -> list[Array]:
        """Return what forward passes without gradients have given since the last call, the class on the last axis; of
        an experiment of inference.
        """
        return []

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended."""

    def ranges(self) -> dict[str, Bounds]:
        """Return between which values the outputs of each module have been, if an experiment notes that; none where
        modules are not heard of.
        """
        return {}

    def digests(self) -> list[tuple[str, int, int]]:
        """Return (site, replica, digest of what it gave last) of each op, each after those that it depends on."""


class TakesInstruments(Protocol):
    """The experiment that a run is."""

    @property
    def plans(self) -> Sequence[Experiment]:
        """The experiments of this process."""

    def attach(self, instruments: Instruments) -> None:
        """Take a framework's side."""

    def ends_with(self, loss: Callable[[], float]) -> bool:
        """Return whether the trial ends with the step under way, because of its loss so far.

        The rest of its body may be given finite numbers then: a program mostly ends where it sees others, and its
        process has other trials to do.
        """

    def ends_with_error(self, error: Exception, frame: FrameType) -> bool:
        """Return whether the trial ends with an exception of the step, raised below `frame`, and the process does not.

        Numbers of any kind may be handed on in place of what the step did not give.
        """


class OpInjector:
    """The injection that is taken up, at an op that is watched as it runs, and what has been done of it."""

    def __init__(self) -> None:
        self.injection: Injection | None = None
        """What is taken up."""
        self._op, self._output = "", 0
        self._countdown = self._count = self._misfits = 0
        self._golden = self._injected = b""

    def select(self, injection: Injection) -> None:
        """Put this injection in from now on; nothing has been done of it."""
        self.injection = injection
        self._op, self._output = op_and_output(injection.site)
        self._countdown = self._count = self._misfits = 0
        self._golden = self._injected = b""

    def arm(self, occurrence: int) -> None:
        """Have the next run of the site, or one so many runs later, hit."""
        self._countdown = occurrence + 1

    def disarm(self) -> None:
        """Have no run hit."""
        self._countdown = 0

    def firing(self) -> Firing | None:
        """Return what has been done so far; None: nothing."""
        has_run = self._count or self._misfits
        return Firing(self._count, self._golden, self._injected, self._misfits) if has_run else None

    def is_site(self, name: str, signature: str) -> bool:
        """Return whether an op is the one that the fault is of."""
        return self.injection is not None and name == self._op and self.injection.signature in ("", signature)

    def must_hit(self, name: str, signature: str) -> bool:
        """Return whether the op that is about to run is to be hit; it counts as run."""
        if not self._countdown or not self.is_site(name, signature):
            return False
        self._countdown -= 1
        return not self._countdown
