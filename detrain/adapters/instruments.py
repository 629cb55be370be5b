"""A framework's side of experiments: sites of faults, the way faults are put in, and the loss and metrics of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

from detrain.base.digest import Array
from detrain.faults.experiment import Bounds, Experiment, Firing, Injection
from detrain.faults.sites import Site, op_and_output

Also = Sequence[tuple[Injection, int]]
"""More injections in the same step, each at an op of its own, with the number of the op's execution that is hit."""


class StepSeries(Protocol):
    """The loss and metrics of steps."""

    def begin(self) -> None:
        """Note that the first step of this process is about to run."""

    def has_loss(self) -> bool:
        """Return whether a gradient has been taken since the last call of `read`, or none was ever taken."""

    def read(self) -> dict[str, float]:
        """Return the loss and metrics of the code that has run since the last call."""

    def state(self) -> object:
        """Return the values that the series remembers from step to step."""

    def set_state(self, state: Any) -> None:
        """Restore the result of `state`, and forget all that the series has noted since."""


class Instruments(Protocol):
    """A framework's side of an experiment."""

    series: StepSeries

    @property
    def is_part_of_steps(self) -> bool:
        """Whether sites are put into steps when these are made (compiled), and stay there; else ops are watched as they
        run, in the steps that need it.
        """

    def begin_step(self) -> None:
        """Count executions from here on, and collect the results of `sites` and `digests`."""

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Select one of the injections of this process's experiments, and the other injections of the same step.

        Raises FaultInvalid if sites are part of steps and several are to be hit.
        """

    def arm(self, occurrence: int) -> None:
        """Hit the fault's site when it next runs, or `occurrence` runs after that; with `UNARMED`, put the site in
        place as for a hit, but hit nothing.
        """

    def disarm(self) -> None:
        """Stop hitting the site."""

    def is_placed(self) -> bool:
        """Return whether the fault's site is in place."""

    def firing(self) -> Firing | None:
        """Return the record of the fault's hits so far; None: there were none."""

    def is_unarmed_equal(self) -> bool | None:
        """Return whether the function that was hit last gives the program's own bits with the site in place but no
        fault; None: not tested.
        """
        return None

    def memory(self) -> list[Site]:
        """Return the variables that exist now, as sites in memory."""

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of a variable in memory; None if no variable has the injection's name, shape and dtype."""

    def outputs(self) -> list[Array]:
        """Return the outputs of forward passes without gradients since the last call, the class on the last axis; for
        an experiment on inference.
        """
        return []

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended."""

    def ranges(self) -> dict[str, Bounds]:
        """Return the bounds of each module's outputs so far, if an experiment notes them; empty for frameworks without
        watched modules.
        """
        return {}

    def digests(self) -> list[tuple[str, int, int]]:
        """Return (site, replica, digest of the last output) for each op, each after the ops that it depends on."""


class TakesInstruments(Protocol):
    """The experiment that a run carries out, as the framework's side sees it."""

    @property
    def plans(self) -> Sequence[Experiment]:
        """The experiments of this process."""

    def attach(self, instruments: Instruments) -> None:
        """Take over a framework's side of the experiment."""

    def ends_with(self, loss: Callable[[], float]) -> bool:
        """Return whether the trial ends with the present step, because of the step's loss so far.

        If so, the rest of the step's body may get finite numbers: most programs stop when they see NaN or infinity, and
        the process has other trials to do.
        """

    def ends_with_error(self, error: Exception, frame: FrameType) -> bool:
        """Return whether an exception of the step, raised below `frame`, ends the trial but not the process.

        If so, the caller may hand on any numbers in place of the step's missing results.
        """


class OpInjector:
    """The selected injection into an op that is watched as it runs, and the record of its hits."""

    def __init__(self) -> None:
        self.injection: Injection | None = None
        """The selected injection."""
        self._op, self._output = "", 0
        self._countdown = self._count = self._misfits = 0
        self._golden = self._injected = b""

    def select(self, injection: Injection) -> None:
        """Select this injection from now on, with an empty record."""
        self.injection = injection
        self._op, self._output = op_and_output(injection.site)
        self._countdown = self._count = self._misfits = 0
        self._golden = self._injected = b""

    def arm(self, occurrence: int) -> None:
        """Hit the next run of the site, or the run `occurrence` runs after it."""
        self._countdown = occurrence + 1

    def disarm(self) -> None:
        """Hit no run."""
        self._countdown = 0

    def firing(self) -> Firing | None:
        """Return the record of hits and misfits so far; None: there were none."""
        has_run = self._count or self._misfits
        return Firing(self._count, self._golden, self._injected, self._misfits) if has_run else None

    def is_site(self, name: str, signature: str) -> bool:
        """Return whether an op is the fault's site."""
        return self.injection is not None and name == self._op and self.injection.signature in ("", signature)

    def must_hit(self, name: str, signature: str) -> bool:
        """Return whether to hit the op that is about to run; count this run if the op is the site."""
        if not self._countdown or not self.is_site(name, signature):
            return False
        self._countdown -= 1
        return not self._countdown
