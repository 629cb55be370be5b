"""`detrain at`: runs a program again, in a copy of its folder, from the checkpoint before a cursor, and stops there. It
starts one process, or all of a job, of which one rank stops there.
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
from detrain.launcher.resume_point import require_same_program
from detrain.moments.past_run import PastRun
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.moment_asked import AskedMoment, Found, Prompt
from detrain.verify.work_folder import copy_folder, place_like

_PAUSE_S: Final = 0.05
_GRACE_S: Final = 10.0
"""How long the rank that is to stop at the cursor may go on after another rank has failed."""


def run_up_to(moment: AskedMoment, run: PastRun, command: Sequence[str], work: Path, answers: Path) -> tuple[int, str]:
    """Run a command that runs a program again, in the folder `work`, until the moment is over. Return its exit status
    and its text on stderr; the text is empty if stderr is the terminal.

    The other ranks wait at their next exchange with the rank that stops at the moment. They are killed at the end.
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
    """Ignore Ctrl-C here while a prompt or debugger is open in the program: it is meant for that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_open else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _wait(processes: Sequence[subprocess.Popen[bytes]], standing: int) -> int:
    """Wait until the process `standing` has ended. Return its number; if it failed, that of the first that failed."""
    first, until = standing, float("inf")
    while processes[standing].poll() is None and time.monotonic() < until:
        failed = next((number for number, each in enumerate(processes) if each.poll()), None)
        if failed is not None and first == standing:
            first, until = failed, time.monotonic() + _GRACE_S
        time.sleep(_PAUSE_S)
    return first if processes[standing].poll() else standing


@dataclass(frozen=True)
class Stand:
    """The findings at a cursor, or at each one of a range."""

    since: str
    """The checkpoint from which the program went on; empty: it started anew."""
    found: list[Found]
    """The findings; empty if the expression `when` was true at no cursor."""


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
    """Go to a batch of a run and return the findings there: at each batch up to `until`, or only at the first one at
    which the expression `when` is true; `bisects` assumes that it then stays true. `opens`: the prompt or debugger that
    the user gets there (debugpy at `port`). If the user steps back in it, the program runs once more, to that batch.

    With `within`, the program stops in the first call of a function of this name in the body, instead of in the loop.

    The program runs in a copy of the current folder: the run's checkpoints, its journal and its files stay as they are.
    Each batch on the way is compared with the journal's. Raises Diverged if one differs, AnotherProgram and
    EnvironmentChanged if the program or the environment is another one, UsageError if the program does not reach the
    batch, or `when` cannot be evaluated.
    """
    moment = AskedMoment(
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


def _go_to(moment: AskedMoment, run: PastRun) -> Stand:
    at, before = moment.at, run.before(moment.at)
    if not before:  # a run that goes on from a checkpoint compares program, environment and batches itself
        require_same_program(run.recorded, run.program, run.arguments)
    with tempfile.TemporaryDirectory(prefix="detrain-at-") as made:
        folder, source = Path(made), Path.cwd()
        homes = [each.home for each in run.everyone]
        work = place_like(source, folder / "beside")
        if not copy_folder(source, work, without=homes, unchanged_since=run.began_s):
            raise UsageError(f"{str(source)!r} holds too many files to be copied", "start it in a folder with fewer")
        home = folder / "ckpt"
        if not before:
            for each in run.everyone:
                each.set_back(work, source)
        answers = folder / "answers"
        start = written(before[-1].cursor.address) if before else ""
        messages.say(f"going to {written(at)} from {f'the checkpoint {start}' if before else 'the start'}")
        again = run.again(before, home, source)
        status, said = run_up_to(moment, run, again, work, answers)
        if not answers.is_file():
            _explain(status, said, moment)
        found = [msgspec.json.decode(line, type=Found) for line in answers.read_bytes().splitlines()]
        if not before:
            for each in run.everyone:
                each.require_same_environment(run.home_in(home, each))
                each.require_same_batches(run.home_in(home, each), found[-1].at if found else moment.until)
        return Stand(start, found)


def _require_no_error(found: Stand, when: str) -> None:
    if found.found and (last := found.found[-1]).error:
        where = f"at {written(last.at)}" if last.is_over else "at each step"
        raise UsageError(f"--when {when!r} fails {where}: {last.error}", "see the names there: detrain at CURSOR PROGRAM")


def _narrowed(moment: AskedMoment, run: PastRun) -> AskedMoment:
    """Return the moment with its range narrowed, by bisection, around the step at which its expression first becomes
    true and then stays so. Trials evaluate it one step after checkpoints: a step binds the names that it may read.
    """
    batches = list(run.batches)
    first, last = batches.index(moment.at), batches.index(moment.until)
    behind = {bisect_left(batches, entry.cursor.address) + 1 for entry in run.entries}
    places = [batches[at] for at in sorted(behind) if first < at < last]
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        asked = msgspec.structs.replace(moment, at=places[middle], until=places[middle], opens=None, saved="", values="")
        found = _go_to(asked, run)
        if found.found and found.found[-1].error and not found.found[-1].is_over:  # names not read again are not restored
            messages.say(f"{found.found[-1].error} at {written(places[middle])}: looking at each step")
            return moment
        _require_no_error(found, moment.when)
        low, high = (low, middle) if found.found else (middle + 1, high)
    at, until = ([moment.at, *places][low], [*places, moment.until][low])
    return msgspec.structs.replace(moment, at=at, until=until)


def _explain(status: int, said: str, moment: AskedMoment) -> None:
    """Raise an error that says why the run did not reach a cursor."""
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
