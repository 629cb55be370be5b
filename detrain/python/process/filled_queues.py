"""Queues that a thread of the program fills: how many items are in one at a cut is chance, which ones come out is not.

A resumed run that loads the batches before the cut again has started the thread again. The items that were in the queue
at the cut must come to be its first ones.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from detrain.base.digest import ToArray, digest_value

_MARK: Final = "filled with:"
_PATIENCE_S: Final = 10.0
_INTERVAL_S: Final = 0.002
met: Final[weakref.WeakSet[queue.Queue[Any]]] = weakref.WeakSet()
"""The queues to which names led when their places were last asked for. Code that begins to ask empties it first."""


def place(value: object, to_array: ToArray) -> str | None:
    """Return the items in a queue (first in, first out), as digests; None for any other object."""
    if type(value) is not queue.Queue:
        return None
    met.add(value)
    return " ".join([_MARK, *(digest_value(item, to_array) for item in _content(value))])


def is_place(text: object) -> bool:
    """Return whether a position is that of such a queue."""
    return type(text) is str and text.startswith(_MARK)


def comes_to(value: Any, text: str, to_array: ToArray) -> bool:
    """Return whether a queue's first items are those of `text`, or soon are: a thread may still be filling it."""
    wanted = text.removeprefix(_MARK).split()
    deadline = time.monotonic() + _PATIENCE_S
    while type(value) is queue.Queue:
        is_last_look = threading.active_count() == 1 or time.monotonic() > deadline
        found = [digest_value(item, to_array) for item in _content(value)[: len(wanted)]]
        if found != wanted[: len(found)]:
            return False
        if len(found) == len(wanted):
            return True
        if is_last_look:
            return False
        time.sleep(_INTERVAL_S)
    return False


def wait_until(is_so: Callable[[], bool]) -> bool:
    """Wait until a condition holds, for `_PATIENCE_S` at most; return whether it holds."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_INTERVAL_S)
    return True


def _content(held: queue.Queue[Any]) -> list[Any]:
    with held.mutex:
        return list(held.queue)
