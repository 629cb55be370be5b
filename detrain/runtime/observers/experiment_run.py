"""An experiment in the process that trains: it arms the fault at its cursor, logs each step's losses and metrics, and
ends the run in time.
"""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import NoReturn

import msgspec
import xxhash

from detrain.adapters import shared_copies
from detrain.adapters.instruments import Instruments
from detrain.base import messages
from detrain.base.cursor import Address, written
from detrain.base.digest import Array, digest_array
from detrain.base.errors import FaultInvalid, FaultNotFired, StoreError
from detrain.faults.experiment import UNARMED, Alarm, Bounds, Experiment, Firing
from detrain.faults.predictions import Prediction, predictions_of
from detrain.faults.sites import Site
from detrain.python.inspect.program_metrics import is_accuracy
from detrain.runtime.observers.instruments_together import InstrumentsTogether
from detrain.runtime.observers.said import (
    BEHIND,
    KEEPS_VARIABLES,
    VARIABLES_SUFFIX,
    OutputStreams,
    Said,
    WrittenFile,
    digests_of,
    write_variables,
)


class StepLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the log: one step, or the code behind the last step of an epoch (`batch` is -1 then)."""

    phase: int
    epoch: int
    batch: int
    series: dict[str, float | str]
    """Losses and metrics by name. Values that are not finite are text, as JSON has no such numbers."""
    state: str = ""
    """Digest of all variables after the step, hex."""
    outputs: str = ""
    """Of a forward pass: the digest of its outputs."""
    predictions: tuple[Prediction, ...] = ()
    """The prediction of a forward pass for each of its inputs."""

    @property
    def address(self) -> Address:
        """The address of the step."""
        return self.phase, self.epoch, self.batch


class Log(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the log. It has the fields that its event sets."""

    step: StepLine | None = None
    seconds: float = 0.0
    """Seconds of wall time since the step before (for the first step, since its body began); also with `end`. Only in
    runs that take checkpoints or have no fault armed."""
    is_armed: bool = False
    """The body of the faulty step is about to run: all differences from here on are the fault's doing."""
    compiling: str = ""
    """In that body, `begun`: copies of a compiled function are made for the fault; `done`: the fault follows."""
    fired: Firing | None = None
    """The corruption that the fault did in the first of its steps."""
    hits: int = 0
    """How often the fault has been put in so far, from its second step on."""
    is_unarmed_equal: bool | None = None
    """Whether that step would have had the program's own bits with the site in place and no fault; None: not tested."""
    missed: Address | None = None
    """A later step of a permanent fault, in which the fault was not done."""
    alarm: Alarm | None = None
    sites: list[Site] | None = None
    digests: list[tuple[str, int, int]] | None = None
    """For each op of a step, in the order of tracing: its site, its replica, and its digest."""
    start: str = ""
    """Digest (hex) of all variables at the beginning of a trial that shares its process with others."""
    process: int = 0
    """Process number of the copy that does the trial, if another process waits for it (see `observers/reserve`)."""
    ended: int = 0
    """The exit status with which that copy has ended in this trial, or the negative number of the signal."""
    obstacle: str = ""
    """The reason why no process can go back to begin this trial."""
    left: str = ""
    """The reason why this process could not go back to begin this trial; another one can."""
    crash: str = ""
    """The class of the exception that would have ended the program; its process goes on without it."""
    ranges: dict[str, Bounds] | None = None
    """At the end of a run that notes them: the smallest and largest outputs of each module."""
    said: Said | None = None
    files: list[WrittenFile] | None = None
    """At the program's end: all files that it has written."""
    end: str = ""
    """In the last line: the reason why the run ended there."""


class ExperimentRun:
    """The experiment of this process.

    `tensors` returns the values of all variables; `drain` waits for running writes of checkpoints.
    """

    stale: Mapping[str, object] = MappingProxyType({})
    """Values of the loop function's names before the epoch: a process that starts there does not bind them."""
    written: Callable[[], Mapping[str, Address | None]] = dict
    """Returns the files that the program has written, each with the body that wrote it."""
    is_over = False
    """Whether the trial has ended, so that the run has to go back: its further steps are ignored."""

    def __init__(self, plans: Sequence[Experiment], tensors: Callable[[], Mapping[str, Array]], drain: Callable[[], None]) -> None:
        self._tensors = tensors
        self._drain = drain
        self._instruments: Instruments | None = None
        self._sides: list[Instruments] = []
        self._is_ending = self._has_begun = False
        self._streams = OutputStreams()
        self._noted_at = time.monotonic()
        shared_copies.heard.append(self._note_compiling)
        self._take_up(plans[0])

    def _take_up(self, plan: Experiment) -> None:
        self.plan = plan
        self._turns = 0
        """Number of steps, from the fault on, that may have been hit."""
        self._done = 0
        """Number of steps done, from the experiment's cursor on."""
        self._log = io.FileIO(plan.log, "a")  # not `open`: detrain follows the files that it opens
        self._body: Address | None = None
        self._is_armed = self._has_fired = self._has_alarm = self._is_profiling = False
        self._firing = Firing(0, b"", b"")
        """The fault's corruptions by the end of the last step that was hit."""
        self.last: StepLine | None = None
        """The last step that has ended."""
        self._bare: StepLine | None = None
        """The last step that has ended, if it is at the fault or behind it and has no digest."""
        if self._instruments is not None and plan.injection is not None:
            self._instruments.select(plan.injection, plan.also)

    @property
    def plans(self) -> Sequence[Experiment]:
        """The experiments of this process."""
        return (self.plan,)

    @property
    def is_struck(self) -> bool:
        """Whether the step that is hit has begun."""
        return self._is_armed or self._has_fired

    def attach(self, instruments: Instruments) -> None:
        """Add the instruments of a framework."""
        self._sides.append(instruments)
        self._instruments = InstrumentsTogether(self._sides, self.plan.injection, self.plan.also)

    def note_alarm(self, variable: str, norm: float, bound: float, kind: str) -> None:
        """Log the guard's first alarm from the fault on. It comes at the end of a body."""
        if not self.is_over and not self._has_alarm and (self._has_fired or self._is_armed):
            self._has_alarm = True
            self._write(Log(alarm=Alarm(self._done, variable, _number(norm), _number(bound), kind)))

    def begin(self, address: Address) -> None:
        """Begin a step, as the body of a batch is about to run."""
        self._body = address
        self._note_said(address)
        if self._instruments is None:
            return
        if not self._has_begun:
            self._has_begun, self._noted_at = True, time.monotonic()
            self._instruments.series.begin()
        if self.plan.is_inference:  # drop the values of code that ran in between: it is no part of the step
            self._instruments.series.read()
            self._instruments.outputs()
        self._is_profiling = self.plan.is_profile and address >= self.plan.at
        if self._is_profiling or address == self.plan.digests_at:
            self._instruments.begin_step()
        if not self.plan.may_hit(address) or 0 < self.plan.steps <= self._turns:
            return
        self._turns += 1  # a step that is run again is not hit again: a transient fault has passed
        if not self.plan.is_due(self._turns - 1):
            return
        if self.plan.is_armed:
            self._instruments.arm(self.plan.occurrence)
            self._write(Log(is_armed=True))
            self._is_armed = True
        else:
            self._instruments.arm(UNARMED)

    def _note_compiling(self, is_begun: bool) -> None:
        """Note that copies are made for the fault, or have been: their time is not the fault's doing."""
        if self._is_armed:
            self._write(Log(compiling="begun" if is_begun else "done"))

    def ends_with(self, loss: Callable[[], float]) -> bool:
        """Return whether the trial of a campaign ends with the step under way, because its loss so far is not finite.

        The trial then ignores the rest of the body, which would mostly end the program.
        """
        plan, body = self.plan, self._body
        if body is None or body < plan.at or not (plan.ends_with_loop and plan.stops_on_nonfinite):
            return False
        return self._done + 1 >= plan.least and not math.isfinite(loss())

    def ends_with_error(self, _error: Exception, _frame: FrameType) -> bool:
        """Return whether an exception of the step ends only the trial, and not the process."""
        return False

    def end_body(self, kept: Callable[[], Mapping[str, float]] = dict, *, is_last: bool = False) -> None:
        """End a step, as the body of a batch, if there was one, is over.

        `is_last`: the batch was its epoch's last. `kept` returns accuracies that the program keeps.
        """
        if self.is_over or self._body is None:
            return
        body, self._body = self._body, None
        if self._instruments is None:
            raise FaultInvalid(
                "no framework that faults can be put into has been imported", "faults need a program of TensorFlow, PyTorch or JAX"
            )
        if self._is_profiling:
            sites = self._instruments.sites()
            # The watched step's result is compared with the golden run's: watching must not change it.
            is_compared = not self._instruments.is_part_of_steps
            step = self._step(body, self._instruments.series.read(), has_digest=True) if is_compared else None
            self._write(Log(sites=sites, step=step))
            self.stop("profile")
            return
        if body == self.plan.digests_at:
            self._write(Log(digests=self._instruments.digests()))
            self.stop("digests")
            return
        if self._is_armed:
            self._disarm(body)
        elif not self.plan.is_armed:
            self._instruments.disarm()
        self._note_said(body, is_body=True)
        if is_last and not self._instruments.series.has_loss():
            # No step: with a set whose size is not known, `fit` begins a body and then finds that there is no batch.
            return
        series = _with(self._instruments.series.read(), kept)
        step = self._step(body, series, has_digest=self._has_digest(body, is_last=is_last))
        self._write(Log(step=step))
        self.last = step
        self._bare = step if not step.state and self.plan.has_digests and body >= self.plan.at else None
        self._done += body >= self.plan.at
        if self.plan.stops_on_nonfinite and not math.isfinite(series.get("loss", 0.0)) and self._done >= self.plan.least:
            self.stop("non-finite loss")
        if (self.plan.until is not None and body >= self.plan.until) or self._done == self.plan.count:
            self.stop("until")

    def end_load(self) -> None:
        """Log the last step again with a digest, as the loader has run out: that step was the last of its epoch."""
        if self.is_over:
            return
        if self._bare is not None:
            self._write(Log(step=msgspec.structs.replace(self._bare, state=self._digest_now())))
        self._bare = None

    def end_epoch(self, phase: int, epoch: int, kept: Callable[[], Mapping[str, float]] = dict) -> None:
        """Log the series of an epoch that is over, with the code behind its batches (validation)."""
        if self.is_over:
            return
        self.end_body(is_last=True)
        self._note_said((phase, epoch, BEHIND))
        if self._instruments is None or self.plan.is_profile:
            return
        series = self._instruments.series.read()
        series.pop("loss", None)
        series = _with(series, kept)
        if series:
            self._write(Log(step=StepLine(phase, epoch, -1, _as_json(series))))
        if self.plan.stops_on_nonfinite and self._done >= self.plan.least and not all(map(math.isfinite, series.values())):
            self.stop("non-finite loss")

    def end_loop(self) -> None:
        """End the trial of a campaign, as the training loop is over."""
        if not self.is_over and self.plan.ends_with_loop and self._done > 0:
            self.end_body()
            self.stop("loop")

    def finish(self) -> None:
        """Log the end of the program. Raises FaultNotFired if the fault's step never came."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self._write(Log(end=f"crash: {type(error).__name__}"))
            return
        self._is_ending = True
        self.end_body()
        if self.plan.injection is not None and self.plan.is_armed and not self._has_fired:
            raise FaultNotFired(
                f"the program ended before {written(self.plan.at)}, where the fault was to be",
                "choose an earlier step with --at",
            )
        self._note_said((BEHIND, 0, 0))
        if self._streams.are_seen:
            self._write(Log(files=digests_of(self.written())))
        self._keep_variables()
        self._note_ranges()
        self._write(Log(end="program"))

    def _note_said(self, at: Address, *, is_body: bool = False) -> None:
        """Log the program's output up to here; in a trial, only from its fault on."""
        out, err = self._streams.take()
        if (out or err) and (self.plan.injection is None or (at, is_body) >= (self.plan.at, True)):
            self._write(Log(said=Said(at, is_body, out, err)))

    def _note_ranges(self) -> None:
        if self.plan.notes_ranges and self._instruments is not None:
            self._write(Log(ranges=self._instruments.ranges()))

    def _keep_variables(self) -> None:
        """Write the final variables beside the log, if a check wants them."""
        if os.environ.get(KEEPS_VARIABLES):
            write_variables(f"{self.plan.log}{VARIABLES_SUFFIX}", self._tensors())

    def _note_hits(self) -> bool:
        """End the hits of a step, and log them; return whether there were any."""
        assert self._instruments is not None
        self._instruments.disarm()
        self._is_armed = False
        before, firing = self._firing, self._instruments.firing() or self._firing
        self._firing = firing
        if firing.count <= before.count:
            return False
        is_equal = self._instruments.is_unarmed_equal()
        hits = firing.count if self._has_fired else 0
        self._write(Log(fired=None if hits else firing, hits=hits, is_unarmed_equal=is_equal))
        self._has_fired = True
        return True

    def _disarm(self, body: Address) -> None:
        injection, before = self.plan.injection, self._firing
        assert injection is not None
        assert self._instruments is not None
        if self._note_hits():
            return
        firing = self._firing
        if self._has_fired and not self.plan.steps:
            self._write(Log(missed=body))
            return
        others = f" (or one of {len(self.plan.also)} that are hit with it)" if self.plan.also else ""
        where = f"site {injection.site!r}{others} (replica {injection.worker}) at {written(body)}"
        if injection.is_in_memory:
            raise FaultNotFired(
                f"{where} is not there as {injection.dtype}{list(injection.shape)}",
                "an optimizer makes its slots in the first step: choose a later one, or see `detrain sites --stage memory --at`",
            )
        if not self._instruments.is_placed():
            raise FaultNotFired(f"{where} is in no compiled function of this run", "list the sites again with `detrain sites`")
        if firing.misfits == before.misfits:
            raise FaultNotFired(
                f"{where} did not run, or not {self.plan.occurrence + 1} times",
                "it was optimised away, or this step does not use it; choose another site or step",
            )
        raise FaultInvalid(
            f"{where}{', or its output,' if injection.limited else ''} has another shape in this step than {list(injection.shape)}",
            "the last batch of an epoch may be smaller, or a step use several shapes; choose another step or --occurrence",
        )

    def _step(self, body: Address, series: Mapping[str, float], *, has_digest: bool) -> StepLine:
        """Return the log line of a step that has ended."""
        step = StepLine(*body, _as_json(series), self._digest_now() if has_digest else "")
        if self.plan.is_inference:
            assert self._instruments is not None
            if "loss" in series:
                raise FaultInvalid(
                    f"step {written(body)} takes a gradient, and is no inference",
                    "evaluate in a `for` loop of its own, without gradients; a comprehension is a part of the loop around it",
                )
            given = self._instruments.outputs()
            if not given:
                raise FaultInvalid(
                    f"step {written(body)} calls nothing that gives scores without gradients",
                    "evaluate by a module under torch.no_grad(), or by a function under jax.jit that returns scores or takes their "
                    "argmax; with TensorFlow there is no --inference yet",
                )
            found = [each for scores in given if scores.ndim > 1 and scores.shape[-1] > 1 for each in predictions_of(scores)]
            return msgspec.structs.replace(step, outputs=_digest_of(given), predictions=tuple(found))
        return step

    def _has_digest(self, body: Address, *, is_last: bool) -> bool:
        plan = self.plan
        if not plan.has_digests or (plan.injection is not None and body < plan.at):
            return False
        is_end = is_last or self._is_ending or body == plan.until or self._done + 1 == plan.count
        return is_end or self._done % plan.digests_every == 0

    def _digest_now(self) -> str:
        state = xxhash.xxh3_128()
        for name, array in sorted(self._tensors().items()):
            state.update(f"{name} {digest_array(array)}\n".encode())
        return state.hexdigest()

    def _write(self, line: Log) -> None:
        if (self.plan.has_checkpoints or not self.plan.is_armed) and (line.step is not None or line.end):
            now = time.monotonic()
            line, self._noted_at = msgspec.structs.replace(line, seconds=now - self._noted_at), now
        left = memoryview(msgspec.json.encode(line) + b"\n")
        try:
            while left:  # on a disk with little room, one call may write only a part
                left = left[self._log.write(left) or 0 :]
        except OSError as error:  # else it would pass for the program's error, and so for an outcome
            raise StoreError(f"cannot write {self.plan.log!r}: {error.strerror}", "make room there") from error

    def stop(self, why: str) -> None:
        """End the process at once, unless it ends anyway: the trial does not need the code after the training."""
        if self._is_ending:
            return
        self._drain()  # before the log says that the run is whole
        self._note_ranges()
        self._write(Log(end=why))
        self._exit()

    def _exit(self) -> NoReturn:
        self._drain()
        messages.flush_output()
        os._exit(0)


def _digest_of(arrays: Sequence[Array]) -> str:
    return xxhash.xxh3_128_hexdigest("\n".join(map(digest_array, arrays)).encode())


def _with(series: dict[str, float], kept: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Return a step's series. If it has no metric of accuracy, add the accuracies that the program keeps."""
    return series if any(map(is_accuracy, series)) else {**kept(), **series}


def _as_json(series: Mapping[str, float]) -> dict[str, float | str]:
    return {name: _number(value) for name, value in series.items()}


def _number(value: float) -> float | str:
    """Return a number in a form that JSON allows: text if it is not finite."""
    return value if math.isfinite(value) else str(value)
