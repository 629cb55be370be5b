"""Watch the headers of loops that are running: by PEP 669 events from Python 3.12 on, by `settrace` on 3.11.

Both cost next to nothing where nothing is watched. `sys.monitoring` switches every other line off at its first event.
`settrace` slows all code while it is on, so it is on only from an update to the next entry of a loop's body.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Final, Protocol

OnLine = Callable[[CodeType, int], None]
"""Called with a watched line each time it is reached."""

Loops = Mapping[int, range]
"""Line of the header, and lines of the body, of loops in one code object."""

_NAME: Final = "detrain"
_TOOLS: Final = (3, 4, 2, 1, 0)
"""Tool numbers of PEP 669, those without a meaning first."""


class LineWatcher(Protocol):
    """Tells when lines of running frames are reached. `arm` is called at each update, with the frames around it."""

    name: str

    def arm(self, frame: FrameType, loops: Loops) -> None:
        """Watch the headers of loops that run in a frame, at least until one of them has turned."""

    def stop(self) -> None:
        """Watch nothing any more."""


class MonitoringWatcher:
    """By `sys.monitoring` (PEP 669): local LINE events on the code in question, disabled line by line when first seen."""

    name = "sys.monitoring"

    def __init__(self, on_line: OnLine) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._on_line = on_line
        self._lines: dict[CodeType, frozenset[int]] = {}
        self._tool = next((tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return
        self._monitoring.use_tool_id(self._tool, _NAME)
        self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, self._reached)

    def arm(self, frame: FrameType, loops: Loops) -> None:
        """Watch headers from now on."""
        code = frame.f_code
        known = self._lines.get(code, frozenset())
        if self._tool is None or loops.keys() <= known:
            return
        self._lines[code] = known | loops.keys()
        self._monitoring.set_local_events(self._tool, code, self._monitoring.events.LINE)
        if known:
            self._monitoring.restart_events()

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._tool is not None:
            for code in self._lines:
                self._monitoring.set_local_events(self._tool, code, 0)
            self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, None)
            self._monitoring.free_tool_id(self._tool)
            self._tool = None

    def _reached(self, code: CodeType, line: int) -> Any:
        if line not in self._lines.get(code, ()):
            return self._monitoring.DISABLE
        self._on_line(code, line)
        return None


class SettraceWatcher:
    """By `sys.settrace`: on for the armed frames, off again as soon as a loop has turned and its body is entered."""

    name = "sys.settrace"

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._loops: dict[CodeType, dict[int, range]] = {}
        self._turned: dict[FrameType, int] = {}
        self._is_on = self._is_stopped = False

    def arm(self, frame: FrameType, loops: Loops) -> None:
        """Watch headers until one has been reached and its body entered."""
        if self._is_stopped or (not self._is_on and sys.gettrace() is not None):  # a debugger is at work: leave it alone
            return
        self._loops.setdefault(frame.f_code, {}).update(loops)
        frame.f_trace = self._local
        if not self._is_on:
            self._is_on = True
            sys.settrace(self._entered)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._is_stopped = True
        self._off()

    def _off(self) -> None:
        if self._is_on:
            self._is_on = False
            self._turned.clear()
            sys.settrace(None)

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._local if self._is_on and frame.f_code in self._loops else None

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


def line_watcher(on_line: OnLine) -> LineWatcher:
    """Return the watcher for this Python."""
    if sys.version_info >= (3, 12):
        return MonitoringWatcher(on_line)
    return SettraceWatcher(on_line)
