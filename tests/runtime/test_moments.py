"""What a moment in memory begins with."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from detrain.python.codec.baseline import Baseline
from detrain.runtime.rollback.ring import Ring
from detrain.runtime.state.whole_state import WholeState


class Model:
    """Garbage that only Python's collector finds."""

    def __init__(self) -> None:
        self.own = self


class Kept(Ring):
    """A ring that nobody goes back in."""

    def at_cut(self, *_: object) -> None:
        return None

    def fail(self, why: str) -> NoReturn:
        raise AssertionError(why)


def test_garbage_is_let_go_before_the_first_moment_of_an_epoch_alone() -> None:
    nothing: Any = SimpleNamespace(rollback=[])
    ring = Kept(2, WholeState(*[nothing] * 6, Baseline, Path()), None)

    def is_swept(*address: int) -> bool:
        model = weakref.ref(Model())
        ring._sweep(address)  # type: ignore[arg-type]
        return model() is None

    gc.disable()
    try:
        assert [is_swept(0, 1, 0), is_swept(0, 1, 7), is_swept(0, 2, 3), is_swept(1, 2, 3)] == [True, False, True, True]
    finally:
        gc.enable()
