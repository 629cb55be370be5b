"""Jobs of pools: a cut waits for them, so that their effects and results are the same in each run.

A program that prepares its next batch in a pool hands a job over, and asks for the result later. How far the job is at
a cut is chance; that it has ended is not. So before a state is taken or set, detrain waits for all jobs of the process,
for the jobs that these hand over, and for their callbacks; their results are data like any other (`codec/recipes.py`).
A job that does not end, or that waits for the program itself (a server, a consumer of a queue), is waited for once.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from detrain.python.inspect.frames import frames_of_others, outwards, user_frames

_LONGEST_S: Final = 10.0
"""How long a cut waits for all jobs together, until one did not end. It decides about refusals, never about bits."""
_BRIEFLY_S: Final = 1.0
"""How long a cut waits after a job did not end."""
_GLANCE_S: Final = 0.25
"""How long a job is waited for before it is looked at: one that waits for the program does not end."""
_POLL_S: Final = 0.0005
_WAITING: Final = (threading.__file__, os.path.join(os.path.dirname(threading.__file__), "queue.py"))
_POOL: Final = concurrent.futures.thread.__file__
_workers: Final = concurrent.futures.thread._threads_queues
"""The threads of pools, with the queues from which they take their jobs."""

Job = concurrent.futures.Future[Any]


class Jobs:
    """The jobs of the process that had not ended when they were last looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[weakref.ref[Job]] = []
        self._most = 64
        self._endless: weakref.WeakSet[Job] = weakref.WeakSet()
        self._longest_s = _LONGEST_S

    def add(self, job: Job) -> None:
        """Add a job that any thread has handed over."""
        with self._lock:
            self._jobs.append(weakref.ref(job))
            if len(self._jobs) > self._most:
                self._jobs = [each for each in self._jobs if (held := each()) is not None and not held.done()]
                self._most = max(64, 2 * len(self._jobs))

    def wait(self) -> None:
        """Wait until all jobs have ended, and those that they hand over meanwhile."""
        if not self._jobs:
            return
        until = time.monotonic() + self._longest_s
        were_waiting = False
        while pending := self._pending():
            _done, left = concurrent.futures.wait(pending, _GLANCE_S)
            are_waiting = len(left) == len(pending) and _wait_themselves(left)
            if (are_waiting and were_waiting) or time.monotonic() > until:
                self._give_up()
                return
            were_waiting = are_waiting
        while self._is_busy():  # with callbacks of jobs that are done
            if time.monotonic() > until:
                self._give_up()
            time.sleep(_POLL_S)

    def has_endless(self) -> bool:
        """Return whether a job goes on that is not waited for, apart from one that the calling thread does."""
        own = _being_done(sys._getframe())
        return any(not job.done() and job not in own for job in list(self._endless))

    def _pending(self) -> list[Job]:
        with self._lock:
            found = [job for each in self._jobs if (job := each()) is not None and not job.done()]
        own = _being_done(sys._getframe())  # the training itself, if a pool does it
        return [job for job in found if job not in own and job not in self._endless]

    def _is_busy(self) -> bool:
        frames = frames_of_others()
        own = _being_done(sys._getframe())
        doing = [_being_done(frames.get(worker.ident or 0)) for worker in list(_workers)]
        return any(job not in own and job not in self._endless for each in doing for job in each)

    def _give_up(self) -> None:
        doing = {job for frame in sys._current_frames().values() for job in _being_done(frame)}
        self._endless.update([*(doing - _being_done(sys._getframe())), *self._pending()])
        self._longest_s = _BRIEFLY_S


_jobs = Jobs()


def watch() -> None:
    """Note each job that is handed to a pool of threads or processes from here on."""
    pool: Any
    for pool in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
        pool.submit = noting(pool.submit)


def noting(original: Any) -> Any:
    """Return a pool's `submit` that notes its jobs."""

    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        job = original(self, fn, *args, **kwargs)
        _jobs.add(job)
        return job

    return submit


def wait() -> None:
    """Wait until the jobs that have been handed over have ended."""
    _jobs.wait()


def living() -> list[str]:
    """Return, in words, the loss of a job that does not end; empty if all end."""
    return ["a job of a pool that does not end"] if _jobs.has_endless() else []


def is_idle(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Return whether a thread, suspended in `frame`, is a pool's and waits for a job."""
    return thread in _workers and frame is not None and not user_frames(frame) and not _being_done(frame)


def _wait_themselves(jobs: Iterable[Job]) -> bool:
    """Return whether all of these jobs that threads have begun wait for something by Python's own means."""
    wanted = set(jobs)
    running = [frame for frame in sys._current_frames().values() if _being_done(frame) & wanted]
    return bool(running) and all(frame.f_code.co_filename in _WAITING for frame in running)


def _being_done(frame: FrameType | None) -> set[Job]:
    """Return the jobs that the thread of a frame is doing."""
    runs = [each for each in outwards(frame) if each.f_code.co_filename == _POOL and each.f_code.co_name == "run"]
    return {job for each in runs if (job := getattr(each.f_locals.get("self"), "future", None)) is not None}
