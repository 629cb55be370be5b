"""The work at a cut, in its order: tell the observers, have the guard look, set a station's state, take a checkpoint.

While batches are loaded again, output of the code around bodies is left out, since the first run has printed it:
through `sys.stdout`, and through handlers of `logging` that write to standard output or stderr. All other output to
stderr still appears, such as progress bars.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from detrain.base import messages, timing
from detrain.base.cursor import Cut
from detrain.base.errors import CheckpointDamaged
from detrain.base.progress import Progress, size_text
from detrain.python.inspect.progress import is_standard
from detrain.python.loaders.strategy import RunningLoop, offers_position
from detrain.python.process.sigterm import GRACE_S
from detrain.runtime.session.parts import Parts
from detrain.store import Snapshot
from detrain.store.chronicle import Ended, Timed, now
from detrain.store.mirror import link as mirror


class Cuts:
    """The work at cuts. The session calls it when it has moved the position to the cut."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._position, self._plan, self._recorder = parts.position, parts.plan, parts.recorder
        self._mute = contextlib.ExitStack()
        """Holds `nothing_printed` while batches are loaded again: the first run has printed that output."""

    def require_whole(self, *, is_over: bool = False) -> None:
        """Raise Diverged if the epoch, whose loop has ended here, had further batches in the first run.

        `is_over`: the epoch loop goes on, so the epoch has ended as it should, however the program left its last loop.
        """
        # On the way to a station, nobody sees the skipped bodies of loops without wrappers.
        is_over &= self._position.epoch >= 0 and not self._plan.is_resuming
        self._recorder.require_whole(is_over=is_over)

    def tell(self, cut: Cut) -> None:
        """Tell the observers that a cut is reached."""
        for observer in self._parts.observers:
            observer.at_cut(cut)

    def end_body(self, cut: Cut, frame: FrameType) -> None:
        """Do the work at the end of a batch's body, if there was one."""
        self._recorder.batches.end_fetch()
        self.tell(cut)
        for observer in self._parts.observers:
            observer.end_body(cut, frame)
        parts = self._parts
        parts.restorer.check_claims()
        if timing.is_running() and self._position.batches_done and parts.restorer.is_settled and not self._plan.is_resuming:
            parts.saves.note(Timed(now(), os.getpid(), timing.finish()))

    def end_epoch(self, frame: FrameType) -> None:
        """Tell the observers that an epoch is over."""
        for observer in self._parts.observers:
            observer.end_epoch(frame)

    def look(self, cut: Cut, source: object = None, frame: FrameType | None = None) -> bool:
        """Look for a hardware fault in the bodies before this cut; return whether the run has gone back from it."""
        recovery, position = self._parts.recovery, self._position
        if recovery is None or self._plan.is_resuming or not position.is_in_phase:
            return False
        moment = recovery.at_cut(position.cursor(cut), position.batches_done, source, frame)
        if cut != "load":
            recovery.leave()
        if moment is None:
            return False
        written = self._parts.world.contents.written_since(moment.address)
        if written:
            messages.warn(f"what these steps have written as a whole stays so until it is written again: {', '.join(written[:8])}")
        position.go_back(moment.address, moment.batches_done)
        return True

    def arrive(self, cut: Cut, frame: FrameType, loop: RunningLoop | None = None) -> bool:
        """Set the next station's state if it is here; return whether it was."""
        station = self._plan.station_at(cut)
        if station is None:
            return False
        path, cursor = station
        if cursor.is_inside:
            self._parts.checkpointer.entered.threads.require_still()
        self._plan.end_loading()
        self._mute.close()
        parts, batches = self._parts, self._recorder.batches
        is_last, is_sought = self._plan.is_last, self._plan.is_sought(cursor)
        timing.enter("state read and set")
        with self._opened(path) as snapshot:
            parts.restorer.check(snapshot.meta)
            batches.has_sought = is_sought and offers_position(loop) and not snapshot.meta.lacks_streams
            parts.restorer.restore(snapshot, frame, parts.baselines.of(cut), loop, is_sought=is_sought, is_last=is_last)
            parts.checkpointer.has_restored(snapshot.meta)
        batches.be_at(cursor.address)
        self._plan.pass_station()
        timing.enter("first new step" if is_last else "the program, up to its loop")
        if is_last:
            parts.files.resume(path)
            for observer in parts.observers:
                observer.has_resumed(cursor)
            if parts.checkpointer.is_asked_for(cut):
                self.save(cut, frame, loop)
        return True

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[Snapshot]:
        """Open the checkpoint of a station. If it proves damaged while it is read, the process ends."""
        reading = Progress(f"state read from {path.name}", size_text, path.stat().st_size if path.exists() else None)
        try:
            with self._parts.adapters.opened(path, reading.add) as snapshot:
                yield snapshot
        except CheckpointDamaged as damage:
            self._plan.go_back_from(damage)
            raise
        finally:
            reading.end()

    def jump(self) -> None:
        """Jump over this epoch's batches: a checkpoint has the state behind them. Bring its files to that state."""
        parts = self._parts
        assert parts.trial is not None
        for shown, state in self._plan.jump().files.items():
            bring(Path(parts.trial.files, shown), Path(parts.files.path_of(shown)), state.size)

    def load_again(self, frame: FrameType) -> None:
        """Begin to load the batches before a station again. In a second try, first set the station's tensors and Python
        state, as a generator of the program failed without them."""
        timing.enter("batches loaded again")
        self._mute.close()
        self._mute.enter_context(nothing_printed())
        path, parts = self._plan.ahead(), self._parts
        if path is not None:
            with self._opened(path) as snapshot:
                parts.adapters.restore(snapshot.tensors, snapshot.meta.owners)
                parts.capture.restore(frame, snapshot, parts.baselines.of("load"), is_ahead=True)

    def save_in_epoch(self, cut: Cut, frame: FrameType, loop: RunningLoop | None = None) -> None:
        """Take a checkpoint before a batch, if one is due."""
        is_requested = self._parts.termination.is_requested
        if self._parts.checkpointer.is_due_in_epoch(is_requested=is_requested):
            self.save(cut, frame, loop)
        just_in_time, position = self._parts.just_in_time, self._position
        if just_in_time is not None:
            just_in_time.at_cut(position.batches_done, lambda: self._take(cut, frame, loop), is_first=position.batch == 0)

    def _take(self, cut: Cut, frame: FrameType, loop: RunningLoop | None) -> Snapshot | None:
        """Return the state, to be held in case a rank dies before the next; None if no run could go on from it."""
        parts = self._parts
        if not parts.checkpointer.can_be_here():
            return None
        snapshot = parts.checkpointer.take(cut, frame, parts.baselines.of(cut), loop)
        if snapshot is not None:
            parts.saves.journal.flush()  # to the operating system, where the lines outlive the process
        return snapshot

    def save(self, cut: Cut, frame: FrameType, loop: RunningLoop | None = None) -> None:
        """Take a checkpoint, and end the process if the user or the trial asked for that."""
        parts = self._parts
        if parts.experiment is None or parts.experiment.plan.has_checkpoints:
            parts.checkpointer.save(cut, frame, parts.baselines.of(cut), loop)
        if parts.trial is not None and parts.trial.ends_at == f"{self._position.cursor(cut)} {cut}":
            parts.saves.finish()
            messages.flush_output()
            os._exit(0)
        if cut in ("epoch", "load") and parts.termination.is_requested:
            self._end("with a checkpoint")

    def end_if_overdue(self) -> None:
        """End the process if SIGTERM came too long ago to wait for a cut with a checkpoint."""
        if self._parts.termination.is_overdue:
            self._end(f"without a new checkpoint: no epoch ended within {GRACE_S:.0f} s")

    def _end(self, how: str) -> None:
        """Write everything, then end the process by SIGTERM."""
        self.finish("SIGTERM")
        messages.say(f"ended by SIGTERM {how}; run it again to go on")
        messages.flush_output()
        os.kill(os.getpid(), signal.SIGTERM)

    def finish(self, how: str = "") -> None:
        """Finish all work as the program ends; `how`: the exception or signal that ends it, if any."""
        parts = self._parts
        self.require_whole()
        if not parts.saves.has_checkpoint and not parts.termination.is_requested:
            parts.world.changes.forget()
        self._recorder.batches.end_fetch()
        self.tell("end")
        for observer in parts.observers:
            observer.finish()
        self._recorder.batches.record_waiting()
        for observer in parts.observers:
            observer.end()
        parts.saves.finish()
        parts.saves.note(Ended(now(), os.getpid(), how))
        if parts.just_in_time is not None:
            parts.just_in_time.finish()
        mirror.finish()


def bring(source: Path, path: Path, size: int) -> None:
    """Make a file hold the first `size` bytes of `source`, which may have grown since, unless it is that long."""
    if source.is_file() and (not path.exists() or path.stat().st_size < size):
        # Not by `open`: detrain follows the files that it opens as the program's own.
        with io.FileIO(source) as file, io.FileIO(path, "r+" if path.exists() else "w") as copy:
            copy.write(file.read(size))


class _Unheard(io.TextIOBase):
    """A standard stream that drops this process's output, but not that of processes forked meanwhile."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._process = stream, os.getpid()

    def write(self, text: str) -> int:
        return len(text) if os.getpid() == self._process else int(self._stream.write(text))

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        return bool(self._stream.isatty())


@contextlib.contextmanager
def nothing_printed() -> Iterator[None]:
    """Leave out the output that the code inside prints."""
    process, handle, streams = os.getpid(), logging.Handler.handle, (sys.stdout, sys.stderr)

    def handle_unheard(handler: logging.Handler, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Ask the handler's filters, as they may count records, but format and write nothing."""
        stream = getattr(handler, "stream", None)
        if stream is not None and os.getpid() == process and (stream in streams or is_standard(stream)):
            return handler.filter(record)
        return handle(handler, record)

    logging.Handler.handle = handle_unheard  # type: ignore[assignment, method-assign]
    try:
        with contextlib.redirect_stdout(_Unheard(sys.stdout)):
            yield
    finally:
        logging.Handler.handle = handle  # type: ignore[method-assign]
