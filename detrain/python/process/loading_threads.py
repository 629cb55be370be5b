"""Threads that load ahead: how far one is at a cut is chance, until it stands still because its queue is full.

A thread that an epoch's own code starts, before the first body of a batch loop, is started again by a resumed run,
which loads the epoch's batches again. The same code brings it to the same place, if it may come to a stand: it has
filled its queue and holds one more item, and nothing moves. So detrain waits for all such threads as they are started,
wherever a state is taken or set, and before a loop's first body, because there they draw the seeds of an epoch.

A thread may draw from the global random streams while bodies run, which may draw, too: their order is chance. Once such
a thread is seen, no body begins before it stands: it loads between the bodies, and not beside them.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from detrain.base.errors import Diverged
from detrain.base.framework_names import MODULES
from detrain.python.inspect.frames import frames_of_others, outwards
from detrain.python.process import filled_queues

_LONGEST_S: Final = 10.0
"""How long threads are waited for. It decides which ones are left out or refused, never about bits."""
_BRIEFLY_S: Final = 1.0
"""How long they are waited for after one did not come to a stand."""
_AGAIN_S: Final = 60.0
"""How long a resumed run waits for threads that the first run has seen stand."""
_POLL_S: Final = 0.0005
_TO_BEGIN_S: Final = 0.05
"""How long a new thread may take to come to code that shows whether it fills a queue."""
_PUT: Final = {"put", "put_nowait"}
_TAKE: Final = {"get", "get_nowait", "recv", "wait", "pop", "popleft"}
_CHANCE: Final = "the order of random numbers (a thread draws them as it loads ahead, by chance before the loop)"
_OURS: Final = MODULES | {"detrain"}
"""Packages that bring their own threads back, or need none."""


class LoadingThreads:
    """The loading threads of the current epoch. `read` returns the states of the global random streams."""

    def __init__(self, read: Callable[[], Mapping[str, bytes]]) -> None:
        self._read, self._longest_s = read, _LONGEST_S
        self._before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._found: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._endless: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that did not come to a stand. They are not waited for again."""
        self._at_phase: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """All threads that were started in this phase, before the current loop."""
        self.is_there = False
        """Whether a loading thread has been seen in this epoch."""
        self.take_turns = False
        """Whether a thread draws random numbers, so that no thread may load while a body runs."""
        self.drawn: set[str] = set()
        """The losses, in words, if a thread has drawn random numbers while bodies ran, which may draw, too."""
        self._stood: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that came to a stand as they were started, while nothing ran beside them."""
        self._starter = 0
        """The number of the thread that runs epochs and starts other threads; 0 outside of training loops."""
        self._start: Any = None

    def begin_phase(self) -> None:
        """Note the threads before a training loop is entered, and watch the start of others."""
        self._at_phase = weakref.WeakSet(threading.enumerate())
        if self._start is None:
            self._start = start = threading.Thread.start

            @functools.wraps(start)
            def started(thread: threading.Thread) -> None:
                start(thread)
                if threading.get_ident() == self._starter:
                    self._let_begin(thread)

            threading.Thread.start = started  # type: ignore[method-assign, assignment]

    def end_phase(self) -> None:
        """Stop waiting for new threads: the program has left the loop."""
        self._starter = 0

    def begin_epoch(self) -> None:
        """Begin an epoch: code runs that a resumed run executes again, and that may start threads."""
        self._starter = threading.get_ident()
        self._leave()
        self._found.clear()
        self.is_there = False
        self.end_loop()

    def end_loop(self) -> None:
        """Note the threads as a batch loop has ended: such code runs next."""
        self._before = weakref.WeakSet(threading.enumerate())

    def look(self) -> None:
        """Find the threads that such code has started, and let them come to a stand; no body has run since."""
        new = [each for each in threading.enumerate() if each not in self._before and each not in self._found]
        self._found.update(new)
        if new and not self._wait(self._longest_s) and self._let_in_one(self._longest_s)[1]:
            self.take_turns = True
            if not self._stood.issuperset(thread for thread, _ in self._fillers()):
                self.drawn.add(_CHANCE)  # it may have drawn beside code that draws

    def begin_body(self) -> None:
        """Wait for threads that take turns with bodies: a body is about to run."""
        if self.take_turns and self._wait(self._longest_s):
            self.drawn.add(_CHANCE)

    def stand_still(self) -> str:
        """Wait until all threads stand. Return the name of one that does not; empty if all do."""
        return self._stand_still(self._longest_s)

    def _stand_still(self, longest_s: float) -> str:
        if not self._found or self.take_turns:
            return self._wait(longest_s)
        before = self._read()
        name = self._wait(longest_s)
        if not name:
            name, _ = self._let_in_one(longest_s)
        if self._read() != before:
            self.drawn.add(_CHANCE)
        return name

    def _let_begin(self, thread: threading.Thread) -> None:
        """Let a new thread come to a stand, if it fills a queue. A thread of a pool does not."""
        run = type(thread).run
        target = getattr(thread, "_target", None) if run is threading.Thread.run else run
        if _is_standard(getattr(getattr(target, "func", target), "__module__", None)):
            return
        until = time.monotonic() + _TO_BEGIN_S
        while thread.is_alive() and time.monotonic() < until:
            frame = frames_of_others().get(thread.ident or 0)
            if frame is not None and not _is_of_python(frame):
                break
            time.sleep(_POLL_S)
        frame = frames_of_others().get(thread.ident or 0)
        if frame is not None and _fills(_codes(frame)) and not self._wait(self._longest_s, [thread]):
            self._stood.add(thread)

    def require_still(self) -> None:
        """Wait until all threads stand, as they did in the first run. Raises Diverged if one does not."""
        name = self._stand_still(_AGAIN_S)
        if name:
            raise Diverged(
                f"the thread {name}, which loads ahead, does not come to a stand in {_AGAIN_S:.0f} s, as in the first run",
                "run it again where loading is not so slow, or start anew with --fresh",
            )

    def standing(self) -> set[threading.Thread]:
        """Return the threads that stand still and only load: a resumed run has them at the same place."""
        return {thread for thread, frame in self._fillers() if _full_queue(frame) is not None and only_fills(_codes(frame))}

    def _leave(self) -> None:
        """Note the threads that the phase has started: no batch loop goes on."""
        self._left = weakref.WeakSet(each for each in threading.enumerate() if each not in self._at_phase)

    def left_behind(self, *, is_inside: bool) -> set[threading.Thread]:
        """Return the threads that wait for ever: a loop was left before its end, and no code takes from their queue any
        more. A thread that is still filling its queue is waited for, briefly. `is_inside`: a batch loop goes on.
        """
        if not is_inside:
            self._leave()
        until = time.monotonic() + _BRIEFLY_S
        while True:
            frames = frames_of_others() if self._left else {}
            left = [thread for thread in self._left if thread not in self._endless]
            alive = [(thread, frame) for thread in left if (frame := frames.get(thread.ident or 0)) is not None]
            waiting = [(thread, _full_queue(frame)) for thread, frame in alive if only_fills(_codes(frame))]
            moving = [thread for thread, held in waiting if held is None]
            if time.monotonic() > until:
                self._endless.update(moving)
            if not moving or moving[0] in self._endless:
                return {thread for thread, held in waiting if type(held) is queue.Queue and held not in filled_queues.met}
            time.sleep(_POLL_S)

    def _let_in_one(self, longest_s: float) -> tuple[str, bool]:
        """Have each thread load one more item, while no other code runs; return the name of one that does not come to a
        stand, and whether one has drawn random numbers.
        """
        queues = {id(held): held for _thread, frame in self._fillers() if (held := _full_queue(frame)) is not None}
        before = self._read()
        for held in queues.values():
            _widen(held, 1)
        try:
            return self._wait(longest_s), self._read() != before
        finally:
            for held in queues.values():
                _widen(held, -1)

    def _wait(self, longest_s: float, new: Sequence[threading.Thread] = ()) -> str:
        """Wait until all threads stand, also those of a chain, where one takes from another's queue and so lets that
        one go on. Return the name of one that does not stand; empty if all do. `new`: threads that were just started.
        """
        until, passes = time.monotonic() + longest_s, 0
        before: Mapping[str, bytes] | None = None
        while True:
            moving = [each for each, frame in self._fillers(new) if each not in self._endless and _full_queue(frame) is None]
            passes = 0 if moving else passes + 1
            if passes > len(self._found) + len(new):
                endless = [each for each, frame in self._fillers() if each in self._endless and only_fills(_codes(frame))]
                return endless[0].name if endless else ""
            left_s = until - time.monotonic()
            if before is None and left_s < longest_s / 2:  # by then a thread has drawn its seeds
                before = self._read()
            if left_s < 0:
                self._endless.update(moving)
                self._longest_s = _BRIEFLY_S
                if self._read() != before:
                    self.drawn.add(_CHANCE)
            elif moving:
                time.sleep(_POLL_S)

    def _fillers(self, new: Sequence[threading.Thread] = ()) -> Iterator[tuple[threading.Thread, FrameType]]:
        """Yield the threads that put items into queues and have not ended, with their innermost frames."""
        frames = frames_of_others() if self._found or new else {}
        for thread in {*self._found, *new}:
            frame = frames.get(thread.ident or 0)
            if frame is not None and thread.is_alive() and _fills(_codes(frame)):
                self.is_there = True
                yield thread, frame


def only_fills(codes: list[CodeType]) -> bool:
    """Return whether these functions put items into a queue, and take none from other threads."""
    return _fills(codes) and not any(_TAKE & {*code.co_names} for code in codes)


def _fills(codes: list[CodeType]) -> bool:
    return any(_PUT & {*code.co_names} for code in codes)


def _codes(innermost: FrameType) -> list[CodeType]:
    """Return the code that a thread is in, without Python's and frameworks'; empty for a framework's own thread."""
    modules = [(each.f_globals.get("__name__"), each.f_code) for each in outwards(innermost)]
    found = [(str(module or "").partition(".")[0], code) for module, code in modules if not _is_standard(module)]
    return [code for top, code in found if top not in MODULES] if found and found[-1][0] not in _OURS else []


def _is_of_python(innermost: FrameType) -> bool:
    """Return whether a thread is in no code but Python's own."""
    return all(_is_standard(each.f_globals.get("__name__")) for each in outwards(innermost))


def _is_standard(module: object) -> bool:
    return str(module or "").partition(".")[0] in sys.stdlib_module_names


def _full_queue(innermost: FrameType) -> Any:
    """Return the full queue into which a thread waits to put an item; None if it does not."""
    waits = threading.Condition.wait.__code__
    frame = next((each.f_back for each in outwards(innermost) if each.f_code is waits), None)
    if frame is None or frame.f_code is not queue.Queue.put.__code__:
        return None
    held: Any = frame.f_locals["self"]
    with held.mutex:
        return held if 0 < held.maxsize <= held._qsize() else None


def _widen(held: Any, by: int) -> None:
    """Change the number of items that a queue may hold."""
    with held.mutex:
        held.maxsize += by
        held.not_full.notify_all()
