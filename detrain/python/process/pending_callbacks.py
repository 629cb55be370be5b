"""Calls that the loop has asked the process to make later. No checkpoint holds them, so they are named.

They come at the process's end (`atexit`), when an object dies (`weakref.finalize`), when a timer of the system rings
(`signal.alarm`). Figures that matplotlib's `pyplot` keeps open are named, too: drawings that a loop adds to one from
epoch to epoch are not captured.
"""

from __future__ import annotations

import atexit
import functools
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from detrain.base.in_place import in_place_of
from detrain.python.inspect.frames import has_user_code

_exits: list[Callable[..., object]] = []
"""The program's functions that are to be called at the process's end."""


def watch() -> None:
    """Note the functions that are registered for the process's end from here on."""
    real_register: Any = atexit.register
    real_unregister: Any = atexit.unregister

    @in_place_of(atexit, "register")
    def register(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if _is_programs(function):
            _exits.append(function)
        return real_register(function, *arguments, **keywords)

    @in_place_of(atexit, "unregister")
    def unregister(function: Any, /) -> None:
        _exits[:] = [each for each in _exits if each != function]
        real_unregister(function)


def asked() -> dict[str, int]:
    """Return how many calls of each kind the program has asked for."""
    # The registry keeps the arguments of `finalize`; there is no other way to see them all.
    finalizers: Any = list(weakref.finalize._registry.values())  # type: ignore[attr-defined]
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return {
        "functions that atexit is to call": len(_exits),
        "functions that weakref.finalize is to call": sum(_is_programs(each.func) for each in finalizers),
        "timers of the system (signal.alarm, signal.setitimer)": sum(signal.getitimer(kind)[0] > 0 for kind in kinds),
    }


OPEN_FIGURES: Final = "figures of matplotlib.pyplot that stay open (drawn into in the loop, harmless)"


def drawn_figures() -> dict[int, tuple[int, ...]]:
    """Return how many artists are in each of the axes of the open figures, by the figures' numbers."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    managers = {} if helpers is None else dict(helpers.Gcf.figs)
    return {number: tuple(len(axes.get_children()) for axes in each.canvas.figure.axes) for number, each in managers.items()}


def _is_programs(function: object) -> bool:
    function = function.func if isinstance(function, functools.partial) else function
    return has_user_code(getattr(function, "__func__", function))
