"""What is being traced or called just now, and what was seen in it: whether it updates weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOTHING: Final = 0
GRADIENT: Final = 1
"""A gradient was taken: the weights may be moved by hand with it."""
APPLIED: Final = 2
"""What an optimizer gave was added to weights."""


class Marked:
    """A call whose Python code runs when it is traced, and not each time: what was seen in it then, it does always."""

    mark = NOTHING

    @property
    def number(self) -> int:
        """What tells it from others."""
        return id(self)


class Own(Marked):
    """A call of detrain's own: what is traced in it is nothing of the program's."""


class _MarkStack(threading.local):
    def __init__(self) -> None:
        self.calls: list[Marked] = []


_stack: Final = _MarkStack()


def calls() -> list[Marked]:
    """Return the calls of this thread that go on, outermost first; to be changed by whoever makes one."""
    return _stack.calls


@contextmanager
def calling(call: Marked) -> Iterator[None]:
    """Inside, a call goes on."""
    _stack.calls.append(call)
    try:
        yield
    finally:
        _stack.calls.pop()


def mark(what: int) -> bool:
    """Mark the innermost call that goes on; return whether there is one."""
    going_on = _stack.calls
    if not going_on:
        return False
    going_on[-1].mark = max(going_on[-1].mark, what)
    return True


def hand_on(call: Marked) -> bool:
    """A call has ended: the one around it does what it does. Returns whether there is one."""
    return mark(call.mark)
