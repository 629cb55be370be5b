"""Threads that load ahead: how far one is at a cut is chance, until it stands still because its queue is full.

A thread that an epoch's own code starts, before the first body of a batch loop, is started again by a resumed run,
which loads the epoch's batches again. It comes to the same place by the same code, if it is let come to a stand: it has
filled its queue and holds one item more, and nothing moves. So all such threads are waited for wherever a state is
taken or set, and at the head of a loop's first batch, because that is where they draw the seeds of an epoch.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

from detrain.base.errors import Diverged
from detrain.base.framework_names import MODULES
from detrain.python.process import filled_queues

_LONGEST_S: Final = 10.0
"""How long they are waited for. It decides about what is left out or refused, never about bits."""
_BRIEFLY_S: Final = 1.0
"""And from when one did not come to a stand."""
_AGAIN_S: Final = 60.0
"""How long in a resumed run, where the first one has seen them stand."""
_POLL_S: Final = 0.0005
_PUT: Final = {"put", "put_nowait"}
_TAKE: Final = {"get", "get_nowait", "recv", "wait", "pop", "popleft"}
_OURS: Final = MODULES | {"detrain"}
"""Who brings threads of their own back, or needs none."""


class LoadingThreads:
    """Those of the epoch that runs. `read` returns the states of the global random streams."""

    def __init__(self, read: Callable[[], Mapping[str, bytes]]) -> None:
        self._read, self._longest_s = read, _LONGEST_S
        self._before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._found: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._endless: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Those that did not come to a stand. They are not waited for again."""
        self._at_phase: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """All that were started in this phase, before the loop that goes on."""
        self.is_there = False
        """Whether one has been seen in this epoch."""
        self.drawn: set[str] = set()
        """What is lost, in words, as one draws random numbers while bodies run, which may do so, too."""

    def begin_phase(self) -> None:
        """A training loop is about to be entered."""
        self._at_phase = weakref.WeakSet(threading.enumerate())

    def begin_epoch(self) -> None:
        """An epoch begins: code runs that a resumed run executes again."""
        self._leave()
        self._found.clear()
        self.is_there = False
        self.end_loop()

    def end_loop(self) -> None:
        """A batch loop has ended: such code runs again."""
        self._before = weakref.WeakSet(threading.enumerate())

    def look(self) -> None:
        """Such code has run: it may have started threads."""
        self._found.update(each for each in threading.enumerate() if each not in self._before)

    def begin_loop(self) -> None:
        """The first batch of a loop is about to be loaded."""
        self.look()
        if self._found and not self._wait(self._longest_s):
            self._let_in_one(self._longest_s)

    def stand_still(self) -> str:
        """Wait until all stand. Return the name of one that does not; empty if there is none."""
        return self._stand_still(self._longest_s)

    def _stand_still(self, longest_s: float) -> str:
        if not self._found:
            return ""
        before = self._read()
        name = self._wait(longest_s) or self._let_in_one(longest_s)
        self._compare(before)
        return name

    def require_still(self) -> None:
        """Wait until all stand, as they did in the first run. Raises Diverged."""
        name = self._stand_still(_AGAIN_S)
        if name:
            raise Diverged(
                f"the thread {name}, which loads ahead, does not come to a stand in {_AGAIN_S:.0f} s, as in the first run",
                "run it again where loading is not so slow, or start anew with --fresh",
            )

    def standing(self) -> set[threading.Thread]:
        """Return those that stand still and do nothing but load: a resumed run has them there, too."""
        return {thread for thread, frame in self._fillers() if _full_queue(frame) is not None and only_fills(_codes(frame))}

    def _leave(self) -> None:
        """No batch loop goes on."""
        self._left = weakref.WeakSet(each for each in threading.enumerate() if each not in self._at_phase)

    def left_behind(self, *, is_inside: bool) -> set[threading.Thread]:
        """Return those that wait for ever: what took from their queue is gone, as a loop was left before its end. One
        that is still filling its queue is waited for, briefly. `is_inside`: a batch loop goes on.
        """
        if not is_inside:
            self._leave()
        until = time.monotonic() + _BRIEFLY_S
        while True:
            frames = sys._current_frames() if self._left else {}
            left = [thread for thread in self._left if thread not in self._endless]
            alive = [(thread, frame) for thread in left if (frame := frames.get(thread.ident or 0)) is not None]
            waiting = [(thread, _full_queue(frame)) for thread, frame in alive if only_fills(_codes(frame))]
            moving = [thread for thread, held in waiting if held is None]
            if time.monotonic() > until:
                self._endless.update(moving)
            if not moving or moving[0] in self._endless:
                return {thread for thread, held in waiting if type(held) is queue.Queue and held not in filled_queues.met}
            time.sleep(_POLL_S)

    def _let_in_one(self, longest_s: float) -> str:
        """Have each load one item more, while nothing else runs: so it is seen whether it draws random numbers."""
        queues = {id(held): held for _thread, frame in self._fillers() if (held := _full_queue(frame)) is not None}
        before = self._read()
        for held in queues.values():
            _widen(held, 1)
        try:
            return self._wait(longest_s)
        finally:
            for held in queues.values():
                _widen(held, -1)
            self._compare(before)

    def _compare(self, before: Mapping[str, bytes]) -> None:
        if self._read() != before:
            self.drawn.add("the order of random numbers (a thread draws them as it loads ahead, by chance before the loop)")

    def _wait(self, longest_s: float) -> str:
        """Wait until all stand, each of a chain of them as well: who takes from another's queue lets that one go on."""
        until, passes = time.monotonic() + longest_s, 0
        before: Mapping[str, bytes] | None = None
        while True:
            moving = [thread for thread, frame in self._fillers() if thread not in self._endless and _full_queue(frame) is None]
            passes = 0 if moving else passes + 1
            if passes > len(self._found):
                endless = [thread for thread, frame in self._fillers() if thread in self._endless and only_fills(_codes(frame))]
                return endless[0].name if endless else ""
            left_s = until - time.monotonic()
            if before is None and left_s < longest_s / 2:  # by then it has drawn its seeds
                before = self._read()
            if left_s < 0:
                self._endless.update(moving)
                self._longest_s = _BRIEFLY_S
                assert before is not None
                self._compare(before)
            elif moving:
                time.sleep(_POLL_S)

    def _fillers(self) -> Iterator[tuple[threading.Thread, FrameType]]:
        """Yield those that put something into queues and have not ended, with their innermost frames."""
        frames = sys._current_frames() if self._found else {}
        for thread in list(self._found):
            frame = frames.get(thread.ident or 0)
            if frame is not None and thread.is_alive() and _fills(_codes(frame)):
                self.is_there = True
                yield thread, frame


def only_fills(codes: list[CodeType]) -> bool:
    """Return whether these functions put something into a queue, and take nothing that others hand them."""
    return _fills(codes) and not any(_TAKE & {*code.co_names} for code in codes)


def _fills(codes: list[CodeType]) -> bool:
    return any(_PUT & {*code.co_names} for code in codes)


def _codes(innermost: FrameType) -> list[CodeType]:
    """Return the code that a thread is in, but for Python's own; none of what a framework's own thread does."""
    found: list[tuple[str, CodeType]] = []
    frame: FrameType | None = innermost
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in sys.stdlib_module_names:
            found.append((top, frame.f_code))
        frame = frame.f_back
    return [code for top, code in found if top not in MODULES] if found and found[-1][0] not in _OURS else []


def _full_queue(innermost: FrameType) -> Any:
    """Return the full queue into which a thread waits to put something; None if it does not."""
    frame: FrameType | None = innermost
    waits = threading.Condition.wait.__code__
    while frame is not None and frame.f_code is not waits:
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None
    if frame is None or frame.f_code is not queue.Queue.put.__code__:
        return None
    held: Any = frame.f_locals["self"]
    with held.mutex:
        return held if 0 < held.maxsize <= held._qsize() else None


def _widen(held: Any, by: int) -> None:
    """Have a queue hold more, or less."""
    with held.mutex:
        held.maxsize += by
        held.not_full.notify_all()
