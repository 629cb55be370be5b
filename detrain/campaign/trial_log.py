"""What a process that ran an experiment has left: log and status, and how its steps compare with those of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid, last_printed
from detrain.faults.experiment import Alarm, Bounds, Firing
from detrain.faults.sites import Site
from detrain.runtime.observers.experiment_run import Log, StepLine
from detrain.runtime.observers.said import BEHIND, Said, WrittenFile
from detrain.runtime.observers.trials_in_process import UNFIRED

HANG: Final = 124
"""The status of a process that took longer than its time limit."""
END: Final = (BEHIND, BEHIND, BEHIND)
"""The cursor of what follows a run's last step."""


class TrialResult(msgspec.Struct, frozen=True):
    """What a process that ran an experiment left."""

    status: int
    """Exit status of the process; -9 if it was killed, `HANG` if it took too long."""
    steps: tuple[StepLine, ...]
    end: str
    """Why it ended; empty if it did not come to say."""
    is_armed: bool = False
    """Whether the faulty step was begun."""
    fired: Firing | None = None
    missed: tuple[Address, ...] = ()
    """Steps of a permanent fault in which it was not done."""
    sites: tuple[Site, ...] = ()
    digests: tuple[tuple[str, int, int], ...] = ()
    """(site, replica, digest) of each op of a step."""
    alarm: Alarm | None = None
    start: str = ""
    """Digest of all variables where it began; empty in a process of its own."""
    obstacle: str = ""
    """Why no other trial of its process was begun, and none of another would be."""
    left: str = ""
    """Why it was not begun, where another process can begin it."""
    process: int = 0
    """The copy of its process that does it, while that one waits."""
    ended: int = 0
    """The status with which that copy has ended in this trial."""
    crash: str = ""
    """The class of the exception with which it ended."""
    seconds: float = 0.0
    """How long it took, in a process that does others."""
    error: str = ""
    """The end of what it wrote to stderr."""
    said: tuple[Said, ...] = ()
    """What the program wrote to stdout and stderr, by stretches; of a trial, from its fault on."""
    files: tuple[WrittenFile, ...] | None = None
    """Files that the program has written, as they are in its end; None: it did not come there, or nobody looked."""
    early_after: int = -1
    """Steps behind which it was ended, as it could only go on like the golden run; -1: it was not."""
    spent: Mapping[Address, float] = {}
    """Of a golden run: the seconds that each step took, by its cursor; under `END` what followed the last."""
    is_unarmed_equal: bool | None = None
    """Whether the steps that were hit would have had the program's own bits with the site in place and no fault; None:
    nobody has looked."""
    ranges: Mapping[str, Bounds] = {}
    """Of a golden run that notes them: between which values the outputs of each module were."""
    check: str = ""
    """What the user's check says of the program's end: passes, fails; empty where there was none."""
    measured: float | None = None
    """The number of the user's function for the program's end."""
    twin: TrialResult | None = None
    """The run that has its site in place, never armed, where that alone has changed bits."""

    @property
    def is_whole(self) -> bool:
        """Whether the run came to its end."""
        return self.status == 0 and self.end != "" and not self.end.startswith("crash")

    @property
    def is_over(self) -> bool:
        """Whether a trial that shares a process has said its last, or its process has for it."""
        return bool(self.end or self.crash or self.obstacle or self.left or self.ended)

    @property
    def is_unfired(self) -> bool:
        """Whether its fault was not done, which was seen in a process that does others."""
        return self.end.startswith(UNFIRED)

    def by_cursor(self) -> dict[Address, StepLine]:
        """Return the steps by (phase, epoch, batch)."""
        return {step.address: step for step in self.steps}


_NEWEST: Final = (
    *("is_armed", "fired", "alarm", "start", "obstacle", "left", "process", "ended", "crash"),
    *("sites", "digests", "ranges", "end"),
)
"""What the last line says that says anything of it."""


def read_log(path: Path) -> TrialResult:
    """Return what a log says; of a step that was run again, the last."""
    steps: dict[Address, StepLine] = {}
    spent: dict[Address, float] = {}
    said: dict[tuple[int, int, int, bool], Said] = {}
    missed: list[Address] = []
    found: dict[str, Any] = {"end": ""}
    for entry in _entries(path):
        at = entry.step.address if entry.step is not None else END
        if entry.step is not None:
            steps[at] = entry.step
        if entry.seconds:
            spent[at] = spent.get(at, 0.0) + entry.seconds
        if entry.said is not None:
            said[entry.said.place] = entry.said
        if entry.missed is not None:
            missed.append(entry.missed)
        found |= {name: value for name in _NEWEST if (value := getattr(entry, name))}
        if entry.hits and "fired" in found:
            found["fired"] = msgspec.structs.replace(found["fired"], count=entry.hits)
        if entry.is_unarmed_equal is not None:
            found["is_unarmed_equal"] = entry.is_unarmed_equal and found.get("is_unarmed_equal") is not False
        if entry.files is not None:
            found["files"] = tuple(entry.files)
    found |= {name: tuple(found.get(name, ())) for name in ("sites", "digests")}
    status = 1 if "crash" in found else 0  # as a process has that ends with an exception
    return TrialResult(status, tuple(steps.values()), missed=tuple(missed), said=tuple(said.values()), spent=spent, **found)


def _entries(path: Path) -> Iterator[Log]:
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry = msgspec.json.decode(line, type=Log)
        except msgspec.DecodeError:  # the process was killed while it wrote
            continue
        yield entry


def same_before(golden: TrialResult, trial: TrialResult, at: Address) -> bool | None:
    """Return whether both runs have the same bits in the steps before a cursor; None if they have none in common."""
    known = golden.by_cursor()
    common = [cursor for cursor in trial.by_cursor() if cursor[2] >= 0 and cursor < at and cursor in known]
    return all(_agree(known[cursor], trial.by_cursor()[cursor]) for cursor in common) if common else None


def same_from(golden: TrialResult, other: TrialResult, at: Address) -> bool:
    """Return whether a run says of each step from a cursor on what the golden run says, digests of variables included.

    The golden run has one of each step, the other one perhaps of some.
    """
    known = golden.by_cursor()
    steps = {cursor: step for cursor, step in other.by_cursor().items() if cursor >= at}
    return bool(steps) and all(cursor in known and is_as(known[cursor], step) for cursor, step in steps.items())


def is_as(golden: StepLine, other: StepLine) -> bool:
    """Return whether a step is the golden run's, its digest of variables, if it has one, included."""
    return _agree(golden, other) and other.state in ("", golden.state)


def _agree(golden: StepLine, other: StepLine) -> bool:
    """Return whether two runs have the same numbers at a step, as far as both have them.

    A run that starts from a checkpoint has no accuracy before the program sets it: the golden one has that of an
    earlier step.
    """
    is_same = all(golden.series.get(name, value) == value for name, value in other.series.items())
    return is_same and other.outputs in ("", golden.outputs)


def failed(what: str, done: TrialResult) -> FaultInvalid:
    """Return the error that says that a run of the program did not do what it should, and why."""
    if done.status == HANG:
        return FaultInvalid(f"the program {what}, and took longer than the time limit", "give it more with --time-limit")
    reason, todo = last_printed(done.error) or ((done.error.splitlines() or ["no message"])[-1], "")
    return FaultInvalid(
        f"the program {what} (exit status {done.status}): {reason}", todo or "run it with `detrain run` to see what it says"
    )
