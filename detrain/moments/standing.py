"""`detrain at`: runs a program again from the checkpoint before a cursor, in a copy of its folder, and stands there:
one process, or those of a job, of which one stands there.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.child_processes import dying_with_this
from detrain.base.cursor import Address, written
from detrain.base.errors import Diverged, UsageError, last_printed
from detrain.launcher import own_ranks
from detrain.moments.past_run import PastRun, address_of
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.moment_asked import Found, Moment, Prompt
from detrain.verify.work_folder import copy_folder, place_like

_PAUSE_S: Final = 0.05
_GRACE_S: Final = 10.0
"""So long the rank that is to stand there may go on when another one has failed."""


def run_up_to(moment: Moment, run: PastRun, command: Sequence[str], work: Path, answers: Path) -> tuple[int, str]:
    """Run a command that runs a program again, in a folder, until the moment is over; return the exit status, and what
    was written to stderr, if that is not the terminal.

    The ranks beside the one that stands there wait for it where they are to meet it. They are killed at the end.
    """
    everyone = run.everyone
    standing = next(number for number, each in enumerate(everyone) if each.home == run.home)
    names = own_ranks.environments(len(everyone)) if run.ranks else [{}]
    errors = [answers.with_name(f"stderr-{number}") for number in range(len(everyone))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, each in enumerate(everyone):
            asked = moment.hand_over(answers) if number == standing else {}
            is_open = moment.opens is not None and number == standing
            with errors[number].open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=work,
                        env={**for_runs_of_ours(), **each.settings(), **names[number], **asked},
                        stdin=None if number == standing else subprocess.DEVNULL,
                        stdout=None if is_open else subprocess.DEVNULL,
                        stderr=None if is_open else file,
                        preexec_fn=dying_with_this(),  # noqa: PLW1509  this process has no other threads
                        start_new_session=number != standing,  # not interrupted from the terminal
                    )
                )
        with _uninterrupted(is_open=moment.opens is not None):
            failed = _wait(processes, standing)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return processes[failed].returncode, errors[failed].read_text(errors="replace")


@contextlib.contextmanager
def _uninterrupted(*, is_open: bool) -> Iterator[None]:
    """Where something is open there, Ctrl-C is for that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_open else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _wait(processes: Sequence[subprocess.Popen[bytes]], standing: int) -> int:
    """Wait until the one that stands there has ended; return its number, or that of one by which it could not go on."""
    first, until = standing, float("inf")
    while processes[standing].poll() is None and time.monotonic() < until:
        failed = next((number for number, each in enumerate(processes) if each.poll()), None)
        if failed is not None and first == standing:
            first, until = failed, time.monotonic() + _GRACE_S
        time.sleep(_PAUSE_S)
    return first if processes[standing].poll() else standing


@dataclass(frozen=True)
class Stand:
    """What was found at a cursor, and at those behind it where that was asked for."""

    since: str
    """The checkpoint that the run went on from; empty: it started anew."""
    found: list[Found]
    """Empty: what was looked for is true nowhere."""


def stand(
    run: PastRun,
    at: Address,
    *,
    until: Address | None = None,
    when: str = "",
    bisects: bool = False,
    within: str = "",
    expressions: Sequence[str] = (),
    saved: Path | None = None,
    values: Path | None = None,
    opens: Prompt | None = None,
    port: int = 0,
) -> Stand:
    """Go to a batch of a run, and say what is there: at each one up to `until`, or at the first from there on at which
    the expression `when` is true; with `bisects` it stays true from there on. `opens` is what the user gets there, of
    debugpy at `port`; where he goes back in it, the program is run once more, to the earlier batch.

    With `within`, the first call of a function of this name in the body is where one stands, instead of the loop.

    Everything happens in a copy of the current folder: the run's checkpoints, its journal and its files stay as they
    are. Each batch on the way is compared with the journal's. Raises Diverged where one is another, UsageError where
    the program does not come there, or `when` cannot be evaluated.
    """
    moment = Moment(
        at=at,
        until=until or (list(run.batches)[-1] if when else at),
        when=when,
        within=within,
        expressions=tuple(expressions),
        opens=opens,
        port=port,
        saved=str(saved.absolute()) if saved is not None else "",
        values=str(values.absolute()) if values is not None else "",
    )
    found = _go_to(_narrowed(moment, run) if bisects else moment, run)
    _require_no_error(found, when)
    while found.found and found.found[-1].back:
        last, batches = found.found[-1], list(run.batches)
        earlier = batches[batches.index(last.at) - last.back]
        found = _go_to(msgspec.structs.replace(moment, at=earlier, until=earlier, when=""), run)
    return found


def _go_to(moment: Moment, run: PastRun) -> Stand:
    at = moment.at
    with tempfile.TemporaryDirectory(prefix="detrain-at-") as made:
        folder, source = Path(made), Path.cwd()
        homes = [each.home for each in run.everyone]
        work = place_like(source, folder / "beside")
        if not copy_folder(source, work, without=homes, unchanged_since=run.began_s):
            raise UsageError(f"{str(source)!r} holds too many files to be copied", "start it in a folder with fewer")
        home = folder / "ckpt"
        before = run.before(at)
        if not before:
            for each in run.everyone:
                each.set_back(work, source)
        answers = folder / "answers"
        start = written(address_of(before[-1])) if before else ""
        messages.say(f"going to {written(at)} from {f'the checkpoint {start}' if before else 'the start'}")
        again = run.again(before, home, source)
        status, said = run_up_to(moment, run, again, work, answers)
        if not answers.is_file():
            _explain(status, said, moment)
        found = [msgspec.json.decode(line, type=Found) for line in answers.read_bytes().splitlines()]
        if not before:  # one that goes on from a checkpoint compares them itself
            for each in run.everyone:
                each.require_same_batches(run.home_in(home, each), found[-1].at if found else moment.until)
        return Stand(start, found)


def _require_no_error(found: Stand, when: str) -> None:
    if found.found and (last := found.found[-1]).error:
        where = f"at {written(last.at)}" if last.is_over else "at each step"
        raise UsageError(f"--when {when!r} fails {where}: {last.error}", "see the names there: detrain at CURSOR PROGRAM")


def _narrowed(moment: Moment, run: PastRun) -> Moment:
    """Return the moment without most of the steps at which its expression is not true for the first time, given that it
    stays true: it is evaluated one step behind checkpoints, where what the step binds is bound.
    """
    batches = list(run.batches)
    first, last = batches.index(moment.at), batches.index(moment.until)
    behind = {bisect_left(batches, address_of(entry)) + 1 for entry in run.entries}
    places = [batches[at] for at in sorted(behind) if first < at < last]
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        asked = msgspec.structs.replace(moment, at=places[middle], until=places[middle], opens=None, saved="", values="")
        found = _go_to(asked, run)
        if found.found and found.found[-1].error and not found.found[-1].is_over:  # what is not read again does not come back
            messages.say(f"{found.found[-1].error} at {written(places[middle])}: looking at each step")
            return moment
        _require_no_error(found, moment.when)
        low, high = (low, middle) if found.found else (middle + 1, high)
    at, until = ([moment.at, *places][low], [*places, moment.until][low])
    return msgspec.structs.replace(moment, at=at, until=until)


def _explain(status: int, said: str, moment: Moment) -> None:
    """Say why the run has not come to a cursor."""
    at = moment.at
    reason = last_printed(said)
    if reason is not None:
        kind = Diverged if status == Diverged.exit_code else UsageError
        raise kind(f"the run did not come to {written(at)}: {reason[0]}", reason[1])
    if status == 0 and moment.within:
        raise UsageError(f"no function {moment.within!r} is called at {written(at)}", "--in takes a name, or Class.name")
    if status == 0:
        raise UsageError(f"the program ended before {written(at)}", "see `detrain ckpt ls` for what the run has")
    last = (said.splitlines() or ["no message"])[-1]
    raise UsageError(f"the run did not come to {written(at)} (status {status}): {last}", "run it with `detrain run` to see more")
