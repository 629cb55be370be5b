"""Jobs of pools: a cut waits for them, so that what they move and return is the same in each run.

A program that prepares its next batch in a pool hands a job over, and asks for the result later. How far it is at a cut is chance;
that it has ended is not. So at a cut all jobs that the process knows are waited for, and their results are data like any other
(`stdlib_state`). A job that does not end (a server, a consumer of a queue) is waited for once.
"""

from __future__ import annotations

import concurrent.futures.process
import concurrent.futures.thread
import functools
import time
import weakref
from typing import Any, Final

_LONGEST_S: Final = 10.0
"""How long a cut waits for all jobs together. It decides about what is refused, never about bits."""
_POLL_S: Final = 0.0005

_jobs: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that have not ended when they were last looked at."""
_endless: weakref.WeakSet[Any] = weakref.WeakSet()


def watch() -> None:
    """Hear of each job that is handed to a pool of threads or processes from here on."""
    _watch(concurrent.futures.thread.ThreadPoolExecutor)
    _watch(concurrent.futures.process.ProcessPoolExecutor)


def _watch(pool: Any) -> None:
    original = pool.submit

    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        job = original(self, fn, *args, **kwargs)
        _jobs.add(job)
        return job

    pool.submit = submit


def wait() -> None:
    """Wait until the jobs that have been handed over have ended."""
    if not _jobs:
        return
    until = time.monotonic() + _LONGEST_S
    for job in list(_jobs):
        while not job.done() and time.monotonic() < until:
            time.sleep(_POLL_S)
        if not job.done():
            _endless.add(job)
        _jobs.discard(job)


def living() -> list[str]:
    """Return, in words, what is lost of jobs that do not end."""
    return ["a job of a pool that does not end"] if any(not job.done() for job in list(_endless)) else []
