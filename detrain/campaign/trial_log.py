"""The results of a process that ran an experiment (log, status), and the comparison of its steps with another run's."""

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
"""The status of a process that exceeded its time limit."""
END: Final = (BEHIND, BEHIND, BEHIND)
"""The cursor of the time behind a run's last step."""


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a process that ran an experiment."""

    status: int
    """Exit status of the process; -9 if it was killed, `HANG` if it took too long."""
    steps: tuple[StepLine, ...]
    end: str
    """Why the run ended; empty if the log does not tell."""
    is_armed: bool = False
    """True if the faulty step was begun."""
    fired: Firing | None = None
    missed: tuple[Address, ...] = ()
    """Steps that a permanent fault should have hit, but did not."""
    sites: tuple[Site, ...] = ()
    digests: tuple[tuple[str, int, int], ...] = ()
    """(site, replica, digest) of each op of a step."""
    alarm: Alarm | None = None
    start: str = ""
    """Digest of all variables where the trial began; empty in a process of its own."""
    obstacle: str = ""
    """Why no trial can follow in this process, nor in another shared one."""
    left: str = ""
    """Why this process did not begin the trial, although another process can."""
    process: int = 0
    """The process number of the copy that does the trial, while the original waits."""
    ended: int = 0
    """The status with which that copy ended in this trial."""
    crash: str = ""
    """The class of the exception that ended the trial."""
    seconds: float = 0.0
    """Duration of the trial, in a process with several."""
    error: str = ""
    """The last lines that the process wrote to stderr."""
    said: tuple[Said, ...] = ()
    """The program's output on stdout and stderr, by stretches; of a trial, from its fault on."""
    files: tuple[WrittenFile, ...] | None = None
    """Files that the program has written, as they are at its end; None: it did not end, or nobody looked."""
    early_after: int = -1
    """Steps after which the trial was ended, as it could only go on like the golden run; -1: it was not."""
    spent: Mapping[Address, float] = {}
    """Of a golden run: the seconds that each step took, by its cursor; under `END` the seconds behind the last."""
    is_unarmed_equal: bool | None = None
    """True if the steps that were hit would have had the program's own bits with the site in place and no fault; None:
    nobody has looked."""
    ranges: Mapping[str, Bounds] = {}
    """Of a golden run that notes them: the lowest and highest output values of each module."""
    check: str = ""
    """The verdict of the user's check at the program's end: passes, fails; empty if there was no check."""
    measured: float | None = None
    """The number that the user's function gave for the program's end."""
    twin: TrialResult | None = None
    """The run with this trial's site in place, never armed, if the site alone changes bits."""

    @property
    def is_whole(self) -> bool:
        """True if the run came to its end."""
        return self.status == 0 and self.end != "" and not self.end.startswith("crash")

    @property
    def is_over(self) -> bool:
        """True if the log of a trial in a shared process is complete."""
        return bool(self.end or self.crash or self.obstacle or self.left or self.ended)

    @property
    def is_unfired(self) -> bool:
        """True if a shared process found that the trial's fault was not done."""
        return self.end.startswith(UNFIRED)

    def by_cursor(self) -> dict[Address, StepLine]:
        """Return the steps by (phase, epoch, batch)."""
        return {step.address: step for step in self.steps}


_NEWEST: Final = (
    *("is_armed", "fired", "alarm", "start", "obstacle", "left", "process", "ended", "crash"),
    *("sites", "digests", "ranges", "end"),
)
"""Fields of which the newest line that sets them counts."""


def read_log(path: Path) -> TrialResult:
    """Return the result that a log holds; of a step that was run again, the last line counts."""
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
    """Return whether both runs have the same bits in the steps before a cursor; None if they share no such step."""
    known = golden.by_cursor()
    common = [cursor for cursor in trial.by_cursor() if cursor[2] >= 0 and cursor < at and cursor in known]
    return all(_agree(known[cursor], trial.by_cursor()[cursor]) for cursor in common) if common else None


def same_from(golden: TrialResult, other: TrialResult, at: Address) -> bool:
    """Return whether all steps of a run from a cursor on are the golden run's, digests of variables included.

    The golden run has a digest for each step, the other run perhaps only for some.
    """
    known = golden.by_cursor()
    steps = {cursor: step for cursor, step in other.by_cursor().items() if cursor >= at}
    return bool(steps) and all(cursor in known and is_as(known[cursor], step) for cursor, step in steps.items())


def is_as(golden: StepLine, other: StepLine) -> bool:
    """Return whether a step is the golden run's, including its digest of variables if there is one."""
    return _agree(golden, other) and other.state in ("", golden.state)


def _agree(golden: StepLine, other: StepLine) -> bool:
    """Return whether two runs have the same numbers at a step, as far as both have them.

    A run that starts from a checkpoint has no accuracy before the program sets it; the golden run has an earlier
    step's accuracy there.
    """
    is_same = all(golden.series.get(name, value) == value for name, value in other.series.items())
    return is_same and other.outputs in ("", golden.outputs)


def failed(what: str, done: TrialResult) -> FaultInvalid:
    """Return the error for a run that did not do as it should, with the reason; `what` completes "the program …"."""
    if done.status == HANG:
        return FaultInvalid(f"the program {what}, and took longer than the time limit", "give it more with --time-limit")
    reason, todo = last_printed(done.error) or ((done.error.splitlines() or ["no message"])[-1], "")
    return FaultInvalid(
        f"the program {what} (exit status {done.status}): {reason}", todo or "run it with `detrain run` to see what it says"
    )
