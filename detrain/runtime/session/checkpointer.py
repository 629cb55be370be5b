"""When checkpoints are due, and their content at a cut: the state of adapters and Python, streams, loaders, files."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType
from typing import Final

from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.config import Config
from detrain.base.cursor import Cut
from detrain.base.digest import Array
from detrain.base.framework_names import runs_training
from detrain.base.options import Mode
from detrain.guard.detector import Guard
from detrain.python.codec.baseline import Baseline
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.object_graph import Encoded
from detrain.python.inspect.program_metrics import find_metric
from detrain.python.loaders.strategy import Entered, RunningLoop, reason_to_load, reasons_to_load, runs_no_code
from detrain.python.outside import event_files
from detrain.python.process import filled_queues, pool_jobs
from detrain.python.process.loading_threads import LoadingThreads
from detrain.python.process.random_streams import Streams
from detrain.runtime.observers.observers import Observer
from detrain.runtime.session.batch_recorder import BatchRecorder
from detrain.runtime.session.saves import Saves
from detrain.runtime.session.world import World
from detrain.runtime.state.capture import Capture
from detrain.runtime.state.identity import Identity
from detrain.runtime.state.position import Position
from detrain.runtime.state.uncaptured import Uncaptured
from detrain.store import LateArrays, Meta, Snapshot

_EMPTY: Final = 3
"""So many epochs in a row without a batch are no epochs of training, but turns of another loop (steps in an
environment)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """The parts of a session that hold some of the state."""

    position: Position
    world: World
    adapters: Adapters
    streams: Streams
    capture: Capture
    recorder: BatchRecorder
    uncaptured: Uncaptured
    identity: Identity
    guard: Callable[[], Guard | None]
    """Returns the guard of the run, if it has one by now."""


class Checkpointer:
    """Takes checkpoints, and tells the observers of them."""

    def __init__(
        self, config: Config, saves: Saves, state: StateParts, observers: list[Observer], cuts: Collection[str] | None = None
    ) -> None:
        """`cuts`: the only cuts at which a checkpoint is due, as `CURSOR CUT`; None: `--every` decides."""
        self._cuts = cuts
        self._config, self._saves, self._state, self._observers = config, saves, state, observers
        self.entered = Entered(LoadingThreads(state.streams.read_global), foresees_end=config.after_batches)
        self.has_updates = False
        """Whether weights have been updated in this phase."""
        self._epoch_base = -1
        """The epoch with the last checkpoint (taken or restored) at its start: those inside of it need that one."""
        self._epoch_at = time.monotonic()
        self._batches_at, self._batches_saved, self._empty_epochs = -1, -1, 0
        """Number of batches done at the start of this epoch; the same for the epoch with the last checkpoint; number of
        epochs without a batch just before this one."""
        self._has_said_behind = self._has_said_lacking = False

    def begin_phase(self) -> None:
        """Note that a training loop is about to be entered."""
        self._epoch_base, self.has_updates = 0, False
        self._epoch_at = time.monotonic()
        self._state.uncaptured.begin_phase()
        self.entered.threads.begin_phase()

    def begin_epoch(self) -> float:
        """Note that an epoch starts; return how long the last one took, in seconds."""
        now = time.monotonic()
        last_took, self._epoch_at = now - self._epoch_at, now
        before, self._batches_at = self._batches_at, self._state.position.batches_done
        self._empty_epochs = self._empty_epochs + 1 if self._batches_at == before else 0
        return last_took

    def has_restored(self, meta: Meta) -> None:
        """Note that the state of a checkpoint has been set."""
        self.has_updates = True  # there is no checkpoint without updates: see `registry.check_training`
        if meta.cut == "epoch":
            self._epoch_base, self._batches_saved = meta.epoch, meta.batches_done
        self._saves.last_at = time.monotonic()

    def is_due_at_epoch(self, last_took: float) -> bool:
        """Return whether a checkpoint is due at the start of an epoch. `last_took`: seconds of the last epoch."""
        every = self._config.every
        if self._cuts is not None:
            return self.is_asked_for("epoch")
        if every.unit != "minutes" and self._empty_epochs >= _EMPTY and self._batches_saved == self._batches_at:
            return False
        if every.unit == "epochs":
            return self._state.position.epoch % max(int(every.count), 1) == 0
        if every.unit == "batches":
            return True
        return self._saves.is_due_by_time(time.monotonic()) or last_took >= every.count * 60

    def is_asked_for(self, cut: Cut) -> bool:
        """Return whether `cuts` asks for a checkpoint at this very cut."""
        return self._cuts is not None and f"{self._state.position.cursor(cut)} {cut}" in self._cuts

    def can_be_here(self) -> bool:
        """Return whether a run could go on from before the next batch."""
        every, position = self._config.every, self._state.position
        if position.batch == 0 or self._epoch_base != position.epoch or self.entered.is_new:
            return False
        if self._state.recorder.is_spoilt:
            return False
        return every.unit == "epochs" or not self._is_beyond_return()

    def is_due_in_epoch(self, *, is_requested: bool) -> bool:
        """Return whether a checkpoint is due before the next batch; `is_requested`: the process is to end."""
        every, position = self._config.every, self._state.position
        if not self.can_be_here():
            return False
        if self._cuts is not None:
            return self.is_asked_for("load") or self.is_asked_for("batch")
        if is_requested:
            return every.unit != "epochs"
        if self._config.after_batches and self.entered.is_behind_last(position.batch):
            return True
        if every.unit == "batches":
            return position.batches_done % max(int(every.count), 1) == 0
        return self._saves.is_due_by_time(time.monotonic())

    def _is_beyond_return(self) -> bool:
        """Return whether a resumed run could not go through this epoch's batch loops again up to here; say so the first
        time.
        """
        path = self.entered.written_between
        if not path and not self.entered.is_behind_break:
            return False
        if not self._has_said_behind:
            self._has_said_behind = True
            why = (
                f"code between the batch loops of an epoch writes {self._state.world.files.shown(path)}"
                if path
                else "a batch loop is left before its end, and others follow in the same epoch"
            )
            then = "write it again, without what was trained" if path else "not leave it there"
            messages.say(
                f"{why}: no checkpoint is taken from there to the epoch's end, because a run that resumed behind it would {then}"
            )
        return True

    def save(self, cut: Cut, frame: FrameType, baseline: Baseline, loop: RunningLoop | None = None) -> None:
        """Take a checkpoint; `baseline`: the values before the code that a run which resumes here skips."""
        with self._saves.timed():
            for observer in self._observers:
                observer.is_saving(self._state.position.cursor(cut))
            snapshot = self.take(cut, frame, baseline, loop)
            if snapshot is None:
                return
            loss = find_metric("loss", frame, self._state.adapters.to_array)
            self._saves.save(self._state.position.cursor(cut), snapshot, self._state.identity.files, loss)
            self._state.recorder.batches.record_next_at_once()
        if cut == "epoch":
            self._epoch_base, self._batches_saved = self._state.position.epoch, self._batches_at

    def take(self, cut: Cut, frame: FrameType, baseline: Baseline, loop: RunningLoop | None) -> Snapshot | None:
        """Return the state at a cut: tensors of optimizers are copied when they are written, all else at once. Return
        None if a thread that loads ahead does not stop, or if batches must be loaded again without streams on record.
        """
        cursor, batches = self._state.position.cursor(cut), self._state.recorder.batches
        batches.record_waiting()
        pool_jobs.wait()
        is_inside = cut in ("load", "batch")
        if is_inside and (name := self.entered.threads.stand_still()):
            self._say_lacking(
                f"no state is taken at {cursor}, nor wherever the thread {name} does not come to a stand: it loads ahead, "
                "and how far it is is chance; give its queue a size, or take checkpoints at the starts of epochs with --every 1"
            )
            return None
        messages.flush_output()
        event_files.flush()
        self._state.adapters.flush()
        # At the end of a phase the names of its loop still count as live, though no code moves them on.
        # A library's `while` loop loads in functions that it calls; a resumed run does not enter these before the cut.
        is_deeper = loop is not None and not loop.names and loop.iteration_id is None
        is_deeper &= runs_training(frame.f_code.co_filename, frame.f_code.co_qualname)
        is_inside = cut in ("load", "batch")
        is_replayed = is_inside and not is_deeper
        filled_queues.met.clear()
        with self._state.adapters.copies_later():
            encoded = self._state.capture.encode(
                frame, baseline, are_loads_replayed=is_replayed, is_alone=runs_no_code(loop), loop=loop
            )
        forward, positions = self._positions(cut, encoded, loop, frame)
        threads = self.entered.threads
        reads = self.entered.reads.lost(None if loop is None or loop.is_fetched_in_body else loop.iterable) if forward else ()
        not_captured = [*encoded.not_captured, *threads.drawn, *reads]
        again = threads.left_behind(is_inside=is_inside) | (threads.standing() if forward else set())
        lost = self._state.uncaptured.look(frame, not_captured, again, has_updates=self.has_updates)
        if is_inside and not self._state.recorder.settle(is_loaded_again=bool(forward)):
            self._say_lacking(
                f"no state is taken at {cursor}, nor before the epoch's end: the batches before it would have to be loaded again "
                f"({forward}), and the random streams at them were not written down; of later epochs they are"
            )
            return None
        guard, world = self._state.guard(), self._state.world
        databases = world.contents.databases()
        beside = [("loader", positions), ("database", databases)]
        named = {f"{kind}{number:05d}": array for kind, held in beside for number, array in enumerate(held.values())}
        arrays = LateArrays(encoded.arrays | named)
        tensors, owners = self._state.adapters.owned()
        meta = Meta(
            phase=cursor.phase,
            epoch=cursor.epoch,
            batch=cursor.batch,
            cut=cursor.cut,
            run=self._config.run,
            program=self._config.program,
            arguments=self._config.arguments,
            sources=self._state.identity.sources(),
            environment=self._state.identity.environment(),
            seed=self._config.seed,
            batches_done=self._state.position.batches_done,
            journal_bytes=self._saves.journal.size,
            frameworks=self._state.adapters.state(),
            owners=owners,
            not_captured=tuple(sorted(lost)),
            gone_on_without=tuple(sorted(self._state.uncaptured.gone_on_without)),
            item=self._state.position.item if cut == "epoch" else "",
            loop=self._state.position.loop_at,
            loader=self.loader_key(loop),
            forward=forward,
            lacks_streams=is_inside and self._state.recorder.lacks_streams,
            loaders=tuple(positions),
            files=world.files.state(),
            databases=tuple(databases),
            guard=guard.bounds.state() if guard is not None else {},
            folders=world.files.folders(),
            metric=self._saves.metric(frame, cursor, self._state.adapters.to_array),
            outside=world.readings(),
            weights=self._state.adapters.weights_files(),
        )
        world.cut(cursor)
        return Snapshot(meta, tensors, self._state.streams.read(), encoded.graph, arrays)

    def _say_lacking(self, why: str) -> None:
        if not self._has_said_lacking:
            self._has_said_lacking = True
            messages.say(why)

    def _positions(self, cut: Cut, encoded: Encoded, loop: RunningLoop | None, frame: FrameType) -> tuple[str, dict[str, Array]]:
        """Return the reason why a run that resumes here loads batches again (empty: it does not), and the positions of
        the frameworks' loaders.
        """
        mode = self._config.loader
        is_inside = cut in ("load", "batch")
        files = [module.__file__ or "" for module in user_modules().values()]
        is_first = loop is not None and self.entered.is_first(loop, frame)
        has_threads = self.entered.threads.is_there
        reasons = reasons_to_load(loop, encoded, files, frame, is_first=is_first, has_threads=has_threads) if is_inside else []
        wanted: Mode = "forward" if reasons else mode
        positions, more = self._state.adapters.positions(wanted)
        reasons += more
        if is_inside and reasons and wanted != "forward":
            positions, _more = self._state.adapters.positions("forward")
        return reason_to_load(reasons, mode), positions

    def loader_key(self, loop: RunningLoop | None) -> str:
        """Return the framework's key of a batch loop's iterator; empty if there is none."""
        return "" if loop is None else self._state.adapters.loader_key(loop.iterator)
