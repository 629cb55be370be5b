"""The calls and traces in progress, each with a mark that says whether it updates weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOTHING: Final = 0
GRADIENT: Final = 1
"""A gradient was taken: the program may update weights with it by hand."""
APPLIED: Final = 2
"""An optimizer's updates were added to weights."""


class Marked:
    """A call whose Python code runs only when JAX traces it; the mark of its trace holds for each later call."""

    mark = NOTHING

    @property
    def number(self) -> int:
        """The number that identifies the call."""
        return id(self)


class Own(Marked):
    """A call that detrain makes itself: traces inside of it do not belong to the program."""


class _MarkStack(threading.local):
    def __init__(self) -> None:
        self.calls: list[Marked] = []


_stack: Final = _MarkStack()


def calls() -> list[Marked]:
    """Return this thread's calls in progress, outermost first; code that makes a call adds and removes it here."""
    return _stack.calls


@contextmanager
def calling(call: Marked) -> Iterator[None]:
    """Count a call as in progress inside of the `with` block."""
    _stack.calls.append(call)
    try:
        yield
    finally:
        _stack.calls.pop()


def mark(what: int) -> bool:
    """Mark the innermost call in progress; return whether there is one."""
    going_on = _stack.calls
    if not going_on:
        return False
    going_on[-1].mark = max(going_on[-1].mark, what)
    return True


def hand_on(call: Marked) -> bool:
    """Give the mark of a call that has ended to the call around it; return whether there is one."""
    return mark(call.mark)
