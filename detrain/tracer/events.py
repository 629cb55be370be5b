"""Watch running loops: by PEP 669 events from Python 3.12 on; on 3.11 by marks in the program, or by `settrace`.

All of these cost next to nothing when no loop is watched. `sys.monitoring` switches every other line off at its first
event. `settrace` slows all code while it is on, so it is on only from an update to the next entry of a loop's body; if
the loader is Python, that is much of the time (1.3 to 1.4 times the bare run). So `detrain trace` puts marks into the
loops (detrain.instrument.loop_marks).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final, Protocol, TypeVar

from detrain.tracer.inference import LoopKey

T = TypeVar("T")

OnLine = Callable[[CodeType, int], bool]
"""Called with the line of a watched header when the program reaches it: the loop is entered, or turns. Returns whether
later calls matter until other loops are armed; if not, a watcher may leave them out."""

OnEntry = Callable[[LoopKey], None]
"""Called with a watched loop each time it is entered."""

LoopLines = Mapping[int, range]
"""Line of the header, and lines of the body, of loops in one code object."""

WatchedFrame = tuple[FrameType, str, LoopLines]
"""A frame, its source file, and the loops that it is in."""

_NAME: Final = "detrain"
_TOOLS: Final = (3, 4, 2, 1, 0)
"""Tool numbers of PEP 669; those without a reserved meaning come first."""


class LoopWatcher(Protocol):
    """Reports when running loops turn, or are entered anew.

    The observer calls `arm` at updates, with all loops around them.
    """

    name: str

    @property
    def is_lasting(self) -> bool:
        """Whether loops need to be armed only once inside of the same outer loops; else at each update."""

    def arm(self, running: Sequence[WatchedFrame]) -> None:
        """Watch loops, at least until one of them has turned."""

    def stop(self) -> None:
        """Stop watching."""


class MonitoringWatcher:
    """Watches by `sys.monitoring` (PEP 669): by local LINE events on the loops' code, disabled line by line when they
    bring no more news.
    """

    name = "sys.monitoring"
    is_lasting = True

    def __init__(self, on_line: OnLine) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._on_line = on_line
        self._lines: dict[CodeType, frozenset[int]] = {}
        self._tool = next((tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return
        self._monitoring.use_tool_id(self._tool, _NAME)
        self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, self._reached)

    def arm(self, running: Sequence[WatchedFrame]) -> None:
        """Watch headers from now on, also those with disabled events."""
        if self._tool is None:
            return
        for frame, _file, loops in running:
            self._lines[frame.f_code] = self._lines.get(frame.f_code, frozenset()) | loops.keys()
            self._monitoring.set_local_events(self._tool, frame.f_code, self._monitoring.events.LINE)
        self._monitoring.restart_events()

    def stop(self) -> None:
        """Stop watching."""
        if self._tool is not None:
            for code in self._lines:
                self._monitoring.set_local_events(self._tool, code, 0)
            self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, None)
            self._monitoring.free_tool_id(self._tool)
            self._tool = None

    def _reached(self, code: CodeType, line: int) -> Any:
        if line in self._lines.get(code, ()) and self._on_line(code, line):
            return None
        return self._monitoring.DISABLE


class SettraceWatcher:
    """Watches by `sys.settrace`: on for the armed frames, off as soon as a loop has turned and its body is entered."""

    name = "sys.settrace"
    is_lasting = False

    def __init__(self, on_line: OnLine, on_entry: OnEntry) -> None:
        self._on_line = on_line
        self._on_entry = on_entry
        self._files: dict[CodeType, str] = {}
        self._loops: dict[CodeType, dict[int, range]] = {}
        self._turned: dict[FrameType, int] = {}
        self._is_on = self._is_stopped = False

    def arm(self, running: Sequence[WatchedFrame]) -> None:
        """Watch headers until one has been reached and its body entered."""
        # Another trace function means that a debugger is at work: leave it alone.
        if self._is_stopped or (not self._is_on and sys.gettrace() is not None):
            return
        for frame, file, loops in running:
            self._files[frame.f_code] = file
            self._loops.setdefault(frame.f_code, {}).update(loops)
            frame.f_trace = self._local
        if not self._is_on:
            self._is_on = True
            sys.settrace(self._entered)

    def stop(self) -> None:
        """Stop watching."""
        self._is_stopped = True
        self._off()

    def _off(self) -> None:
        if self._is_on:
            self._is_on = False
            self._turned.clear()
            sys.settrace(None)

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._anew if self._is_on and frame.f_code in self._loops else None

    def _anew(self, frame: FrameType, event: str, argument: object) -> Any:
        """Trace a call that began after the update: its first loop is entered there, and does not turn."""
        if not self._is_on or event != "line" or frame.f_lineno not in self._loops[frame.f_code]:
            return self._anew
        self._on_entry((self._files[frame.f_code], frame.f_lineno))
        return self._local(frame, event, argument)

    def _local(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not self._is_on or event != "line":
            return self._local
        loops, line = self._loops.get(frame.f_code, {}), frame.f_lineno
        if line in loops:
            self._turned[frame] = line
            self._on_line(frame.f_code, line)
        elif frame in self._turned and line in loops[self._turned[frame]]:
            self._off()
        return self._local


class MarkWatcher:
    """Watches by marks in the program: each mark calls `enter` when its loop is entered.

    Another watcher watches loops without a mark.
    """

    name = "marks"
    is_lasting = True
    """True until a loop without a mark has been seen."""

    def __init__(self, on_entry: OnEntry, marks: Sequence[LoopKey], others: LoopWatcher) -> None:
        self._on_entry = on_entry
        self._marks = marks
        self._numbers = {key: number for number, key in enumerate(marks)}
        self._is_armed = [False] * len(marks)
        self._others = others

    def enter(self, iterable: T, number: int) -> T:
        """Note that a marked loop is entered. The program calls this with the loop's iterable, and gets it back."""
        if self._is_armed[number]:
            self._on_entry(self._marks[number])
        return iterable

    def arm(self, running: Sequence[WatchedFrame]) -> None:
        """Watch these loops from now on."""
        numbers = [self._numbers.get((file, line), -1) for _frame, file, loops in running for line in loops]
        for number in numbers:
            if number >= 0:
                self._is_armed[number] = True
        if -1 in numbers:  # arm all of them: a loop without a mark may be entered at each turn of one with a mark
            self.is_lasting = self._others.is_lasting
            self._others.arm(running)

    def stop(self) -> None:
        """Stop watching."""
        self._is_armed = [False] * len(self._marks)
        self._others.stop()


def marks_are_used() -> bool:
    """Return whether marks are the best means on this Python."""
    return sys.version_info < (3, 12)


def loop_watcher(on_line: OnLine, on_entry: OnEntry, marks: Sequence[LoopKey]) -> LoopWatcher:
    """Return the watcher for this Python and a program in which the loops `marks` carry marks."""
    others = MonitoringWatcher(on_line) if sys.version_info >= (3, 12) else SettraceWatcher(on_line, on_entry)
    return MarkWatcher(on_entry, marks, others) if marks else others
