"""The place of the program: its training loop, epoch and batch."""

from __future__ import annotations

import threading
from pathlib import Path
from types import FrameType

from detrain.base.cursor import Address, Cursor, Cut
from detrain.base.errors import NotCapturable
from detrain.runtime.state.identity import statements_before


class Position:
    """The place of the program. The session moves it on at each probe; all others only read it."""

    def __init__(self) -> None:
        self.phase, self.epoch, self.batch = -1, 0, 0
        """All count from 0; the phase is -1 before the first one. While a batch is loaded or run, `batch` is that
        batch's number plus one."""
        self.batches_done = 0
        """Number of bodies begun since the start of the run, over all phases and epochs."""
        self.is_in_phase = False
        self.is_implicit = False
        """True if the phase is a batch loop without an epoch loop around it."""
        self.is_in_body = False
        """True from the start of a batch's body until the program leaves the epoch's loop."""
        self.is_loading = True
        """True while no batch's body runs: a batch is being loaded, or a loop was left."""
        self.loop_at = ""
        """The place of the phase's loop in the source: file, function, number of statements before it."""
        self.item = ""
        """The epoch loop's item in this epoch, if it is a number or text."""
        self._thread = 0
        """The identifier of the thread that began the phase."""

    def moment(self) -> tuple[int, int, int]:
        """Return the numbers of the program's phase, epoch and next batch."""
        return self.phase, self.epoch, self.batch

    def address(self) -> Address:
        """Return the address of the batch that is being loaded or run; its number is -1 before the first."""
        return self.phase, self.epoch, self.batch - 1

    def cursor(self, cut: Cut) -> Cursor:
        """Return the cursor of a cut at this place."""
        return Cursor(self.phase, self.epoch, self.batch, cut)

    def place(self) -> Cursor | None:
        """Return the program's cursor, None outside of loops with probes."""
        return Cursor(self.phase, self.epoch, self.batch) if self.is_in_phase else None

    def begin_phase(self) -> None:
        """Note that this thread is about to enter a training loop."""
        self.phase += 1
        self._thread = threading.get_ident()

    def enter(self, frame: FrameType) -> None:
        """Note that the program enters the loop, at the current line of `frame`."""
        path = frame.f_code.co_filename
        before = statements_before(path, frame.f_lineno)
        self.loop_at = f"{Path(path).name} {frame.f_code.co_qualname} {before}"

    def begin_loop(self) -> None:
        """Note that the loop begins: none of its epochs has begun yet."""
        self.epoch, self.batch = -1, 0
        self.is_in_phase, self.is_implicit, self.is_loading = True, False, True

    def begin_epoch(self, epoch: int) -> None:
        """Note that an epoch starts."""
        self.epoch, self.batch, self.is_loading = epoch, 0, True

    def end_phase(self) -> None:
        """Note that the program has left the loop."""
        self.is_in_phase = self.is_in_body = False

    def go_back(self, address: Address, batches_done: int) -> None:
        """Go back to the batch at `address`, as the run goes on from there."""
        self.phase, self.epoch, self.batch = address
        self.batches_done = batches_done

    def next_batch(self) -> int:
        """Return the number of the batch that is about to be loaded, and move on behind it."""
        self.batch += 1
        return self.batch - 1

    def is_here(self) -> bool:
        """Return whether this thread runs the loop and is in it."""
        return self.is_in_phase and threading.get_ident() == self._thread

    def check_thread(self) -> None:
        """Raise NotCapturable if another thread runs the loop: it is in the middle of a batch, and has no cut there."""
        if self.is_in_phase and threading.get_ident() != self._thread:
            raise NotCapturable(
                "training loops run in several threads at once: in which order they update weights is chance",
                "train in one thread (one worker), or run the program with --bare, without checkpoints",
            )
