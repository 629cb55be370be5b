"""Progress bars around a batch loop's loader: the loop draws from the loader itself, and reports each item to the bar.

So a bar has no position of its own: a resumed run sets the loader to its position as without a bar, and the bar shows
how many batches are done. This works for classes with tqdm's own `__iter__`, which counts the items and hands them on;
the loop hands each item through it.
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
    """A bar that has not begun, and the loader below it."""

    def __init__(self, bar: Any, source: Any) -> None:
        self.source = source
        """The loader that the loop draws from in place of the bar."""
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
        """Have the bar, which has not begun, count so many items that were passed over."""
        if not self._bar.disable:  # a bar that is not shown does not count
            self._bar.n = self._first + count

    def tell(self, item: object) -> None:
        """Report an item that has been drawn."""
        self._turn(item)

    def end(self) -> None:
        """Report that there is no further item."""
        self._turn(NOTHING)

    def leave(self) -> None:
        """Close the bar's iterator as the loop is left, as plain Python does: the bar shows its count then."""
        self._turns.close()

    def _turn(self, item: object) -> None:
        """Have the bar draw an item from this object: the bar reads its `iterable` as it begins."""
        self._item, self._bar.iterable = item, self
        try:
            next(self._turns, None)
        finally:
            self._item, self._bar.iterable = NOTHING, self._over


def shown_loads(iterable: Any, frame: FrameType) -> ShownLoads | None:
    """Return the tqdm bar that a loop goes over, or that is below an `enumerate` in the loop's header, which nobody
    else can hold; None for any other object. `frame` is the frame of the loop.
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
