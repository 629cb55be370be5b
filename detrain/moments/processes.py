"""The processes that run a program again up to a moment: one, or those of a job, of which one stands there."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from detrain.base.child_processes import dying_with_this
from detrain.launcher import own_ranks
from detrain.moments.past_run import PastRun
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.moment import Moment

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
