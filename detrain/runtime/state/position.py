"""Where the program is: which training loop, which epoch of it, which batch."""

from __future__ import annotations

import threading
from pathlib import Path
from types import FrameType

from detrain.base.cursor import Address, Cursor, Cut
from detrain.base.errors import NotCapturable
from detrain.runtime.state.identity import statements_before


class Position:
    """Moved on by the session as the probes tell it; everybody else only reads it."""

    def __init__(self) -> None:
        self.phase, self.epoch, self.batch = -1, 0, 0
        """All from 0; the phase is -1 before the first. While a batch is loaded or run, `batch` is the number behind
        it."""
        self.batches_done = 0
        """Bodies begun since the start of the run, over all phases and epochs."""
        self.is_in_phase = False
        self.is_implicit = False
        """Whether the phase is a batch loop that no epoch loop is around."""
        self.is_in_body = False
        """Whether the body of a batch has been begun, and its epoch's loop not been left."""
        self.is_loading = True
        """Whether no body is running whose fetching counts: a batch is being loaded, or a loop was left."""
        self.loop_at = ""
        """Where the loop of the phase stands: file, function, number of statements before it."""
        self.item = ""
        """What the epoch loop goes over in this epoch, where that is a number or text."""
        self._thread = 0
        """The one that began the phase."""

    def moment(self) -> tuple[int, int, int]:
        """Return the turns that the program is in: of its training loops, of one's epochs, and
        of an epoch's batches.
        """
        return self.phase, self.epoch, self.batch

    def address(self) -> Address:
        """Return the address of the batch that is being loaded or run, its number -1 before the first."""
        return self.phase, self.epoch, self.batch - 1

    def cursor(self, cut: Cut) -> Cursor:
        """Return the cursor of a cut that is here."""
        return Cursor(self.phase, self.epoch, self.batch, cut)

    def place(self) -> Cursor | None:
        """Return where in a loop with probes the program is."""
        return Cursor(self.phase, self.epoch, self.batch) if self.is_in_phase else None

    def begin_phase(self) -> None:
        """A training loop is about to be entered, by this thread."""
        self.phase += 1
        self._thread = threading.get_ident()

    def enter(self, frame: FrameType) -> None:
        """It is entered, by the line that `frame` is at."""
        path = frame.f_code.co_filename
        before = statements_before(path, frame.f_lineno)
        self.loop_at = f"{Path(path).name} {frame.f_code.co_qualname} {before}"

    def begin_loop(self) -> None:
        """No epoch of it has begun."""
        self.epoch, self.batch = -1, 0
        self.is_in_phase, self.is_implicit, self.is_loading = True, False, True

    def begin_epoch(self, epoch: int) -> None:
        """An epoch starts."""
        self.epoch, self.batch, self.is_loading = epoch, 0, True

    def end_phase(self) -> None:
        """The loop has been left."""
        self.is_in_phase = self.is_in_body = False

    def go_back(self, address: Address, batches_done: int) -> None:
        """The run goes on from a moment that it has been in."""
        self.phase, self.epoch, self.batch = address
        self.batches_done = batches_done

    def next_batch(self) -> int:
        """Return the number of the batch that is about to be loaded; it is behind."""
        self.batch += 1
        return self.batch - 1

    def is_here(self) -> bool:
        """Return whether this thread is the one of the loop, and in it."""
        return self.is_in_phase and threading.get_ident() == self._thread

    def check_thread(self) -> None:
        """The state at a cut is that of one loop: it is none where another thread is in the middle of a batch."""
        if self.is_in_phase and threading.get_ident() != self._thread:
            raise NotCapturable(
                "training loops run in several threads at once: in which order they update weights is chance",
                "train in one thread (one worker), or run the program with --bare, without checkpoints",
            )
