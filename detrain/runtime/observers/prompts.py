"""The prompts that open where a run stops: Python's debugger, another one over a port, or a shell with the names there.

With each, the run is over when the user leaves it, or when the step ends.
"""

from __future__ import annotations

import code
import contextlib
import dis
import importlib.util
import itertools
import os
import pdb
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from detrain.base import messages
from detrain.base.errors import UsageError
from detrain.python.inspect.frames import outwards
from detrain.runtime.observers.moment_asked import Prompt

_HERE: Final = "127.0.0.1"
"""Whoever reaches the port can run any code as the user, so debugpy listens only to this machine."""


def open_prompt(kind: Prompt, port: int, frame: FrameType, end: Callable[[], None], back: Callable[[int], None]) -> None:
    """Open a prompt in a frame of the program that has called a probe; return if the body is to run.

    `port` is debugpy's. `end` ends the process. So does `back`, so that another one can stop so many steps earlier; it
    raises UsageError if there are too few.
    """
    messages.flush_output()
    if kind == "pdb":
        _debugger_of_user()(end, back).open_in(frame)
    elif kind == "debugpy":
        _wait_for_debugger(port, frame)
    else:
        _open_shell({**frame.f_globals, **frame.f_locals})
        end()


def _debugger_of_user() -> type[_Debugger]:
    """Return IPython's debugger if `breakpoint()` opens that and the user sits at a terminal; else Python's own."""
    name = os.environ.get("PYTHONBREAKPOINT", "").partition(".")[0]
    if name not in ("ipdb", "IPython") or not sys.stdin.isatty() or importlib.util.find_spec("IPython") is None:
        return _Debugger
    from IPython.terminal.debugger import TerminalPdb

    return type("_DebuggerOfIPython", (_Debugger, TerminalPdb), {})


class _Debugger(pdb.Pdb):
    """Python's own debugger; with `quit` the run is over."""

    def __init__(self, end: Callable[[], None], back: Callable[[int], None]) -> None:
        super().__init__(skip=["detrain.*"])
        self._end, self._back = end, back

    def open_in(self, frame: FrameType) -> None:
        """Stop in a frame right behind the probe that it has called, at the body's first line. A stop at the next line
        would be the body's second one, as the probe has the position of the first.
        """
        start = _behind_probe(frame)

        def watch(where: FrameType, event: str, arg: Any) -> Any:
            if where is frame and ((event == "opcode" and where.f_lasti == start) or event == "line"):
                frame.f_trace_opcodes = False
                self.reset()
                for outer in outwards(frame):
                    outer.f_trace, self.botframe = self.trace_dispatch, outer
                sys.settrace(self.trace_dispatch)
                self.interaction(frame, None)
                return self.trace_dispatch
            return watch

        frame.f_trace, frame.f_trace_opcodes = watch, True
        sys.settrace(watch)

    def set_quit(self) -> None:
        """End the process, instead of raising an error that the program could handle."""
        self._end()

    def do_back(self, arg: str) -> None:
        """back [count]

        Stop so many steps (one, if none is given) before this one, as the run was there. Changes made here are lost.
        """
        if arg and not (arg.isdecimal() and int(arg)):
            self.error(f"{arg!r} is no number of steps")
            return
        try:
            self._back(int(arg or 1))
        except UsageError as error:
            self.error(error.what)


def _behind_probe(frame: FrameType) -> int:
    """Return the offset at which the body begins, behind the test of the probe's result; -1 if no test is found."""
    ahead = [each for each in dis.get_instructions(frame.f_code) if each.offset > frame.f_lasti]
    for this, following in itertools.pairwise(ahead):
        if this.opname.startswith("POP_JUMP"):
            return int(this.argval) if "TRUE" in this.opname else following.offset
    return -1


def _open_shell(names: dict[str, Any]) -> None:
    """Read statements and run them with these names until the user leaves. The program's own variables stay bound."""
    banner = "The names of the run are here: what is bound anew is not bound in the run. exit() ends it."
    if importlib.util.find_spec("IPython") is None:
        with contextlib.suppress(SystemExit):  # raised by exit()
            code.interact(banner, local=names, exitmsg="")
        return
    import IPython

    print(banner)
    IPython.start_ipython(argv=["--no-banner"], user_ns=names)


def _wait_for_debugger(port: int, frame: FrameType) -> None:
    """Stop in a frame once a debugger connects that speaks the Debug Adapter Protocol: in VS Code, "attach"."""
    import debugpy

    host, port = debugpy.listen((_HERE, port))
    messages.put(f"detrain: waiting for a debugger at {host}:{port}")
    debugpy.wait_for_client()
    debugpy.debug_this_thread()
    pydevd: Any = sys.modules["pydevd"]
    waiting, thread = pydevd.get_global_debugger(), threading.current_thread()

    def stop(*_event: object) -> None:
        sys.setprofile(None)
        # Not `debugpy.breakpoint()`: it stops at the frame's next line. That is the body's second one, as the probe has
        # the position of the first.
        waiting.set_suspend(thread, pydevd.CMD_SET_BREAK)
        waiting.do_wait_suspend(thread, frame, "line", None)
        waiting.set_trace_for_frame_and_parents(thread.ident, frame)

    sys.setprofile(stop)  # called as this function returns: the interpreter traces no code in a profile function
