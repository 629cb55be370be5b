"""Progress bars around what a batch loop goes over: the loop draws from the loader itself, and the bar is told.

So a bar has no position of its own: a resumed run sets the loader to its position as without one, and the bar shows how
many batches are behind. This is so for classes with tqdm's own `__iter__`, which hands on what it draws and counts; the
loop hands each item through it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from detrain.base.cursor import NOTHING


class ShownLoads:
    """A bar that has not begun, and what it goes over."""

    def __init__(self, bar: Any, source: Any) -> None:
        self.source = source
        """What the loop draws from in its place."""
        self._bar, self._over, self._turns = bar, bar.iterable, bar.__iter__()
        self._first = bar.n
        self._item: object = NOTHING

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        if self._item is NOTHING:
            raise StopIteration
        return self._item

    def pass_over(self, count: int) -> None:
        """So many items are behind, of which the bar has not been told, and it has not begun."""
        if not self._bar.disable:  # one that is not shown does not count
            self._bar.n = self._first + count

    def tell(self, item: object) -> None:
        """An item has been drawn."""
        self._turn(item)

    def end(self) -> None:
        """There is no further one."""
        self._turn(NOTHING)

    def leave(self) -> None:
        """The loop has been left: what the bar counts is told where plain Python lets go of its iterator."""
        self._turns.close()

    def _turn(self, item: object) -> None:
        """Have the bar draw an item from here: it takes hold of what it goes over as it begins."""
        self._item, self._bar.iterable = item, self
        try:
            next(self._turns, None)
        finally:
            self._item, self._bar.iterable = NOTHING, self._over


def shown_loads(iterable: Any, frame: FrameType) -> ShownLoads | None:
    """Return what a bar of tqdm does beside a loop over it, or over `enumerate` of it in the loop's header: that is
    nobody else's. None for anything else. `frame` is the one that the loop stands in.
    """
    if "tqdm.std" not in sys.modules:
        return None
    if type(iterable) is enumerate and _is_numbered_here(frame):
        from detrain.python.inspect.progress import is_progress_bar  # `import detrain` is to be light

        made: Any = iterable.__reduce__()
        bars, first = made[1]
        is_whole = is_progress_bar(bars) and inspect.getgeneratorstate(bars) == inspect.GEN_CREATED
        bar: Any = bars.gi_frame.f_locals["self"] if is_whole else None
        return ShownLoads(bar, enumerate(bar.iterable, first)) if _hands_on(bar) else None
    return ShownLoads(iterable, iterable.iterable) if _hands_on(iterable) else None


def _hands_on(bar: Any) -> bool:
    tqdm: Any = getattr(sys.modules["tqdm.std"], "tqdm", ())
    is_bar = isinstance(bar, tqdm) and type(bar).__iter__ is tqdm.__iter__
    return is_bar and getattr(bar, "iterable", None) is not None


def _is_numbered_here(frame: FrameType) -> bool:
    code = frame.f_code
    is_own = "enumerate" in (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *frame.f_globals)
    return not is_own and _numbers(code.co_filename, frame.f_lineno)


@lru_cache(maxsize=64)
def _numbers(file: str, line: int) -> bool:
    """Return whether the header of a loop on a line calls `enumerate`."""
    from detrain.base.structure import loop_nodes
    from detrain.instrument.loop_positions import read_source

    source = read_source(file)
    loop = None if source is None else loop_nodes(source.tree).get(line)
    match loop:
        case ast.For(iter=ast.Call(ast.Name("enumerate"))):
            return True
    return False
