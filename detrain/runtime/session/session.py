"""The run of one program: where it is, when it saves, and how it comes back to where it was.

The probes (detrain.runtime.session.probes) tell the session where the program is. Cuts, in the order in which an epoch passes them:
`epoch` (record_epoch), then for each batch `load` (before it is loaded), and `end` where the epoch loop has run out.

To resume, the session passes *stations*: checkpoints on the way to the newest one. Epochs before a station are skipped as a whole,
batches before it are loaded and not executed; at the station the state is set, and the program runs on from there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

from detrain.adapters.api import Adapter
from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.config import Config, Mode
from detrain.base.cursor import FETCHED_IN_BODY, Cursor, Cut
from detrain.base.digest import Array, digest_value
from detrain.base.errors import Diverged, NotCapturable
from detrain.faults.experiment import of_environment
from detrain.guard.detector import DEPTH, Guard
from detrain.python.codec.api import Baseline, Encoded
from detrain.python.inspect.generator_callers import COUNTED
from detrain.python.inspect.object_graph import WITH_VARIABLES
from detrain.python.inspect.program_metrics import accuracies
from detrain.python.inspect.user_modules import user_modules
from detrain.python.loaders.batch_digests import Batches
from detrain.python.loaders.generator_replay import Elements, Pulls
from detrain.python.loaders.strategy import Entered, Loop, reasons_to_load, settle
from detrain.python.outside.change_log import Changes
from detrain.python.outside.clock_and_entropy import Outside
from detrain.python.outside.fs_answers import Answers
from detrain.python.outside.open_files import Files
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process import pending_callbacks, pool_jobs
from detrain.python.process.random_streams import Streams
from detrain.python.process.sigterm import GRACE_S, Termination
from detrain.runtime.rollback.recovery import Recovery
from detrain.runtime.rollback.ring import Ring
from detrain.runtime.rollback.trial_window import Window
from detrain.runtime.session.experiment_run import ExperimentRun
from detrain.runtime.session.saves import Saves
from detrain.runtime.session.trials_in_process import Campaign, Rewind
from detrain.runtime.session.verify_hooks import Trial
from detrain.runtime.state.capture import Capture
from detrain.runtime.state.identity import Identity, statements_before
from detrain.runtime.state.uncaptured import Losses, is_refused
from detrain.store import Catalogue, Meta, Snapshot, opened, read_meta
from detrain.store.catalogue import cursor_of
from detrain.store.journal import Address
from detrain.tracer.confirmation import Confirmation


class Session:
    """State of detrain in the user's process, one a process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._catalogue = Catalogue(Path(config.home))
        metas = [read_meta(Path(path)) for path in config.stations]
        last = metas[-1] if metas else None
        self._stations = [(Path(path), cursor_of(meta)) for path, meta in zip(config.stations, metas, strict=True)]
        self._loops_were = {meta.phase: meta.loop for meta in metas if meta.loop}
        """Where the first run entered the loops of the phases, as far as there are stations in them."""
        self._loop_at = ""
        self._saves = Saves(config, self._catalogue, last.journal_bytes if last is not None else None)
        self._journal = self._saves.journal
        self.adapters = Adapters()
        self.streams = Streams()
        self._files = Files()
        self._is_in_phase = self._is_implicit = False
        self._termination = Termination(lambda: self._is_in_phase)
        if config.saves_on_sigterm:
            self._termination.watch()
        self._trial = Trial.of_environment()
        plans = of_environment()
        kind = Campaign if len(plans) > 1 else ExperimentRun
        self.experiment: ExperimentRun | None = kind(plans, self.adapters.tensors, self._saves.drain) if plans else None
        self._phase, self._epoch, self._batch, self._pass_until = -1, 0, 0, 0
        self._thread = 0
        """The one that began the phase."""
        self._pulls = Pulls(self._address, lambda value: digest_value(value, self.adapters.to_array), self._repeat_streams)
        self.elements = Elements(self.streams, self._journal, self._note_element)
        self._capture = Capture(self.adapters, self._files, self._pulls)
        self.unchanged = self._capture.unchanged
        self._guard: Guard | None = None
        self._guards_gradients = False
        self.recovery: Recovery | Rewind | None = None
        """Looks for hardware faults at each cut, and goes back."""
        if config.guard:
            self.guard(
                recovers=config.guard == "recover",
                goes_on=config.goes_on_after_repeat,
                gradients=config.guards_gradients,
                on_host=config.ring == "host",
            )
        if isinstance(self.experiment, Campaign):
            window = Window(1, self._capture, self.adapters, self.streams, self._files)
            self.recovery = Rewind(self.experiment, window, self._guard, lambda: self._at_first_batch, self._catalogue.folder)
        self._sought = {cursor_of(meta) for meta in metas if meta.forward == "" and config.loader != "forward"}
        """Cuts at which loaders are set to their positions."""
        self._confirmation = Confirmation(config, self._begin, lambda: self._saves.has_checkpoint)
        log = self._catalogue.folder / f"{config.program}-r{config.run}.changes"
        is_fresh = config.is_fresh and not self._confirmation.is_restart
        self._changes = Changes(log, cursor_of(last) if last is not None else None, is_fresh=is_fresh)
        kept, made = [meta.files for meta in metas], last.folders if last is not None else ()
        self._files.watch(kept, made, self._changes, self._catalogue.folder, config.program, is_new=last is None)
        known = last.outside if last is not None else self._trial.outside if self._trial is not None else {}
        if self._changes.heard is not None:
            known = self._changes.heard
            if not self._confirmation.is_restart:
                messages.say("cut off before its first checkpoint, it begins anew, and hears of clock and files what it heard then")
        self._outside = Outside(known, self._place)
        self._outside.watch()
        self.contents = Contents(self._files, self._place)
        self.contents.watch()  # before the next: who asks that is seen from its caller
        self._losses = Losses(self.adapters, self.streams, self.contents, is_strict=config.is_strict)
        self.answers = Answers(self._outside, self._files, self._changes)
        self.answers.watch()
        pending_callbacks.watch()
        pool_jobs.watch()
        self._batches = Batches(self._journal, self.adapters.to_array, may_differ=config.allows_environment)
        self._identity = Identity(config.environment, self.adapters, config.edits, may_differ=config.allows_environment)
        self._at_phase, self._at_first_batch, self._left = Baseline(), Baseline(), Baseline()
        self._batches_done = 0
        self._entered = Entered()
        self._holds = False
        """Whether generators of the program's own count as streams."""
        self._quiet: object = None
        """The loop (its `turn_of`) at whose next turns there is nothing to do but to count them, None if there is none."""
        self._may_be_quiet = config.every.unit == "epochs" and self._trial is None and self.experiment is None
        self._claims_from: int | None = None
        """Batches done when the state was restored, until a body has run on it."""
        self._streams_at_batch: dict[str, bytes] | None = None
        self._notes_all_streams = False
        self._epoch_base = -1
        self._item = ""
        self._epoch_at = time.monotonic()
        self._has_said_behind = False
        self._lacks: Cursor | None = None
        """Where a batch loop has ended: too early, if the first run had a batch there, unless another run of one goes on there."""
        self._is_in_body = self._is_confirmed = self._has_updates = False
        self._is_loading = True
        """Whether no body is running whose fetching counts: a batch is being loaded, or a loop was left."""
        self._batches.suspects = self._losses.named

    def guard(self, *, recovers: bool, goes_on: bool, gradients: bool, on_host: bool) -> None:
        """Look for hardware faults from here on. `goes_on`: also where an alarm comes again in the steps that are run again."""
        self._guards_gradients = gradients
        if gradients:
            self.adapters.watch_gradients()
        ring = Ring(DEPTH, self._capture, self.adapters, self.streams, self._files, on_host=on_host) if recovers else None
        log = self._catalogue.folder / f"{self._config.program}-r{self._config.run}.alarms.jsonl"
        is_first = not self._config.is_restarted and not self._config.stations
        self._guard = Guard(recovers=recovers, goes_on=goes_on, log=log, adapters=self.adapters, is_first=is_first)
        self.recovery = Recovery(self._guard, ring, self._config, self._files, lambda: self._at_first_batch, self._settle)

    def _settle(self) -> None:
        """Have everything written that waits."""
        self._batches.settle()
        self._journal.flush()
        self._saves.drain()

    def moment(self) -> tuple[int, int, int]:
        """Return the turns that the program is in: of its training loops, of one's epochs, and of an epoch's batches."""
        return self._phase, self._epoch, self._batch

    def attach(self, adapter: Adapter) -> None:
        """A framework has been imported."""
        self.adapters.add(adapter)
        if self._guards_gradients and adapter.norms is not None:
            adapter.norms.watch_gradients()
        self._batches.trust(adapter.leaves.constant_type)
        for name, stream in adapter.random.streams().items() if adapter.random is not None else ():
            self.streams.add(name, stream)

    @property
    def is_resuming(self) -> bool:
        """Whether a station lies ahead."""
        return bool(self._stations)

    @property
    def is_forwarding(self) -> bool:
        """Whether a station lies ahead in this phase, so that bodies are skipped."""
        return bool(self._stations) and self._stations[0][1].phase == self._phase

    # Where the program is.

    def begin_phase(self, frame: FrameType) -> None:
        """The program enters an epoch loop (or a batch loop outside of any)."""
        self._look("end")
        self._batches.end_fetch()
        self._batches.require_phase_end(self._phase)
        self._phase += 1
        self._thread = threading.get_ident()
        self._begin()
        path, line = frame.f_code.co_filename, frame.f_lineno
        self._loop_at = f"{Path(path).name} {frame.f_code.co_qualname} {statements_before(path, line)}"
        if self._phase == 0:
            self._identity.sources()  # of modules that came in by ways of their own: what they hold now, not at the first save
        was = self._loops_were.get(self._phase, self._loop_at)
        if was != self._loop_at:
            raise Diverged(
                f"phase {self._phase} is the loop at {Path(path).name}:{line}; the checkpoint was taken in another, of "
                f"{' '.join(was.split()[:2])}",
                "were other loops given probes since (inst.info)? Take those that it had, or start anew with --fresh",
            )
        self._epoch, self._batch, self._epoch_base, self._pass_until = -1, 0, 0, 0
        self._is_in_phase, self._is_implicit, self._has_updates = True, False, False
        self._is_loading = True
        self._losses.begin_phase()
        self._epoch_at, self._quiet = time.monotonic(), None
        self.adapters.begin_phase()
        self._at_phase, self._left = self._capture.begin_phase(frame), Baseline()
        self._hold_generators(frame)
        if self._pulls:
            self.note_all_streams()

    def _hold_generators(self, frame: FrameType) -> None:
        """Take the program's own generators of random numbers for streams, where what loads may share them with the bodies."""
        self._holds = bool(self._pulls) or self.elements.is_python
        self.streams.hold(self._capture.held_generators(frame) if self._holds else {})

    def _begin(self, at: float | None = None) -> None:
        """The program enters its first training loop, or has done so (`at`) where there are no probes yet: see `Changes.begin`."""
        self._outside.enter(at)
        self._changes.begin(self._outside.readings)
        self._files.enter()

    def _address(self) -> Address:
        """Return the address of the batch that is being loaded or run, its number -1 before the first."""
        return self._phase, self._epoch, self._batch - 1

    def _note_element(self, element: object) -> None:
        """An iterator that lives on from body to body has given an element."""
        if not self._is_loading and self._is_in_phase and threading.get_ident() == self._thread:
            self._batches.add_fetched(self._address(), element)

    def note_fetch(self, value: object) -> None:
        """The line of an update has loaded a batch, if that is data."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        data = (np.ndarray, *self.adapters.constant_types)
        if any(isinstance(part, data) for part in parts):
            self._note_element(value)

    def note_yield(self, frame: FrameType, value: object) -> None:
        """A generator of the program is about to yield."""
        self._pulls.note(frame, value)

    def _check_thread(self) -> None:
        """The state at a cut is that of one loop: it is none where another thread is in the middle of a batch."""
        if self._is_in_phase and threading.get_ident() != self._thread:
            raise NotCapturable(
                "training loops run in several threads at once: in which order they update weights is chance",
                "train in one thread (one worker), or run the program with --bare, without checkpoints",
            )

    def end_phase(self) -> None:
        """The program has left the epoch loop."""
        self._check_whole()
        self._batches.end_fetch()
        self._note_alarm("end")
        self._look("end")
        if self._trial is not None and self._is_in_phase and not self.is_forwarding:
            self._trial.at_end(f"phase {self._phase}", self.adapters.tensors())
        self._is_in_phase = self._is_in_body = self._notes_all_streams = False
        self.adapters.end_phase()

    def on_update(self, what: int) -> None:
        """Weights are updated: in the body of a loop with probes, as they should, or elsewhere."""
        self._has_updates = True
        if self._is_in_body and not self._is_confirmed:
            self._is_confirmed = True
            self._confirmation.in_body()
        elif not self._is_in_phase:
            self._confirmation.outside(what)

    @property
    def expects_updates(self) -> bool:
        """Whether an update that comes now is one of many: nothing need be known of it."""
        return self._is_in_body and self._is_confirmed and self._has_updates

    @property
    def is_in_phase(self) -> bool:
        """Whether the program is inside an epoch loop."""
        return self._is_in_phase

    @property
    def phase(self) -> int:
        """The phase the program is in or was in last, -1 before the first."""
        return self._phase

    @property
    def epoch(self) -> int:
        """The epoch the program is in, -1 before the first."""
        return self._epoch

    def target_epoch(self) -> tuple[int, Cut] | None:
        """Return the epoch (and cut) of the next station, if it lies in this phase."""
        if not self.is_forwarding:
            return None
        cursor = self._stations[0][1]
        return cursor.epoch, cursor.cut

    def at_epoch(self, epoch: int, frame: FrameType, item: object = None) -> None:
        """Cut: an epoch starts. `item` is what its loop goes over: the program's own number of it, mostly."""
        self._check_thread()
        self._check_whole(is_over=self._is_in_phase)
        self._item = repr(item) if type(item) in (int, float, str) else ""
        now = time.monotonic()
        last_took, self._epoch_at = now - self._epoch_at, now
        self._batches.end_fetch()
        self._end_body("epoch", frame)
        self._check_claims()
        self._look("epoch")
        if self.experiment is not None and self._epoch >= 0 and not self._stations:
            self.experiment.end_epoch(
                self._phase, self._epoch, lambda: accuracies(frame, self.adapters.to_array, is_after_epoch=True)
            )
        self._epoch, self._batch, self._pass_until, self._quiet = epoch, 0, 0, None
        self._is_loading = True
        self._entered.begin(frame)
        if self._config.every.unit != "epochs":
            self._left = self._capture.left(frame, self._at_phase)
        if not self._notes_all_streams:
            self._streams_at_batch = None
        if self._arrive("epoch", frame) or self._stations:
            return
        every = self._config.every
        if epoch == 0:
            return
        is_due = {
            "epochs": epoch % max(int(every.count), 1) == 0,
            "batches": True,
            "minutes": self._saves.is_due_by_time(now) or last_took >= every.count * 60,
        }[every.unit]
        if is_due or self._termination.is_requested:
            self._save("epoch", frame)
            self._epoch_base = epoch
            if self._termination.is_requested:
                self._end("with a checkpoint")

    def at_end(self, epochs: int, frame: FrameType) -> None:
        """Cut: the epoch loop has run out after so many epochs."""
        self._check_whole(is_over=True)
        self._note_alarm("end")
        self._look("end")
        if self.experiment is not None and epochs > 0 and not self._stations:
            self.experiment.end_epoch(
                self._phase, self._epoch, lambda: accuracies(frame, self.adapters.to_array, is_after_epoch=True)
            )
        self._epoch, self._batch = epochs, 0
        if not self._arrive("end", frame) and not self._stations and epochs > 0:
            self._save("end", frame)
        self.end_phase()

    def _end_body(self, cut: Cut, frame: FrameType) -> None:
        """The body of a batch is over: note what the experiment wants to know of it."""
        if self.experiment is not None:
            self._note_alarm(cut)
            self.experiment.end_body(lambda: accuracies(frame, self.adapters.to_array), is_last=cut != "load")

    def _note_alarm(self, cut: Cut) -> None:
        """Have the guard look, and tell the experiment what it sees."""
        is_looking = self._guard is not None and not self._guard.recovers and self._is_in_phase and not self._stations
        if self.experiment is None or self._guard is None or not is_looking:
            return
        self._guard.must_go_back(Cursor(self._phase, self._epoch, self._batch, cut), self._batches_done)
        seen = self._guard.alarm
        if seen is not None:
            self.experiment.note_alarm(seen.key, seen.norm, seen.bound, seen.kind)

    def _look(self, cut: Cut, source: object = None, frame: FrameType | None = None) -> bool:
        """Look for a hardware fault in the bodies before this cut; return whether the run has gone back from it."""
        if self.recovery is None or self._stations or not self._is_in_phase:
            return False
        cursor = Cursor(self._phase, self._epoch, self._batch, cut)
        moment = self.recovery.at_cut(cursor, self._batches_done, source, frame)
        if cut != "load":
            self.recovery.leave()
        if moment is None:
            return False
        written = self.contents.written_since(moment.address)
        if written:
            messages.warn(f"what these steps have written as a whole stays so until it is written again: {', '.join(written[:8])}")
        self._phase, self._epoch, self._batch = moment.address
        self._batches_done = moment.batches_done
        return True

    def at_load(self, frame: FrameType, loop: Loop) -> int:
        """Cut: a batch of a loop is about to be loaded. Returns its number in the epoch."""
        self._check_thread()
        self._is_loading = True
        source = None if loop.turn_of is None else loop
        self._batches.end_fetch()
        self._end_body("load", frame)
        self._check_claims()
        self._saves.check()
        if not self._is_in_phase:
            self.begin_phase(frame)
            self._epoch, self._is_implicit = 0, True
            self._entered.begin(None)
        self._lacks = None
        if self._batch == 0 and self.elements.is_python and not self._holds:
            self._hold_generators(frame)
        self._entered.note(loop, frame, self.contents.written_last)
        self.contents.written_last = ""
        if self._batch < self._pass_until and self._batch > 0:
            self._set_streams((self._phase, self._epoch, self._batch))
            self._batch += 1
            return self._batch - 1
        if self._look("load", source, frame):
            self._batch += 1
            return self._batch - 1
        address = (self._phase, self._epoch, self._batch)
        needs_baseline = self._config.every.unit != "epochs" or self.recovery is not None
        if self._batch == 0 and (self.is_forwarding or needs_baseline):
            self._at_first_batch = self._capture.baseline(frame, loop, self._left)
        if self.is_forwarding:
            self._aim()
            if not self._arrive("load", frame, loop):
                self._set_streams(address)
        elif not self._stations:
            self._note_streams(address)
            if self._is_due_in_epoch() and (self.recovery is None or not self.recovery.is_again):
                self._save("load", frame, loop)
                if self._termination.is_requested:
                    self._end("with a checkpoint")
        if self.recovery is not None and not self._stations:
            self.recovery.hold((self._phase, self._epoch, self._batch), self._batches_done, source, frame)
        if self._termination.is_overdue:
            self._end(f"without a new checkpoint: no epoch ended within {GRACE_S:.0f} s")
        self._quiet = loop.turn_of if self._may_be_quiet and self._is_quiet() and not loop.is_fetched_in_body else None
        self._batch += 1
        return self._batch - 1

    def _is_quiet(self) -> bool:
        """Return whether the next turns of the loop that is running are only to be counted, until something else happens."""
        return not self._stations and self.recovery is None and self._streams_at_batch is None and self._claims_from is None

    def turn(self, loop: Loop) -> int:
        """Return the number of the batch that is about to be loaded, or -1 where `at_load` must be asked.

        No checkpoint is taken before the next epoch, so nothing is noted of where in this one the run is. Behind a training step
        the processor's caches hold none of this code: what is not called does not slow the next step.
        """
        if self._quiet is not loop.turn_of or self._termination.is_requested or self._saves.writer.has_failed:
            return -1
        self._is_loading = True
        self._batch += 1
        return self._batch - 1

    def take_quietly(self, batch: int, loaded: object) -> bool:
        """Record the digest of a batch whose body is about to run; return False where `at_batch` must be asked."""
        if self._quiet is None:
            return False
        self._is_in_body = self._batches.is_recording = True
        self._is_loading = False
        self._batches.add((self._phase, self._epoch, batch), loaded)
        self._batches_done += 1
        return True

    def _aim(self) -> None:
        """Find out how many batches of this epoch are only to be loaded, or go to the cut at once."""
        cursor = self._stations[0][1]
        is_here = cursor.epoch == self._epoch and cursor.is_inside
        self._pass_until = cursor.batch if is_here else sys.maxsize
        if is_here and cursor.cut == "load" and self._batch == 0 and cursor in self._sought:
            self._batch = cursor.batch
        else:
            messages.start_forwarding(cursor)

    def _set_streams(self, address: tuple[int, int, int]) -> None:
        """Set the random streams to where the body before this batch, which was skipped, had left them."""
        states = self._journal.streams.get(address)
        if states is not None:
            self.streams.write(states)

    def load_again(self, address: Address, load: Callable[[], None]) -> None:
        """Have a batch loaded by the random streams that were there at its head, if they are on record; compare its digest."""
        self._pulls.be_at(address)
        self._batches.begin_fetch(address, is_again=True)
        load()
        self._batches.end_fetch()

    def pass_batch(self, batch: int, loaded: object, *, is_by_body: bool) -> None:
        """A batch before the next station has been loaded, or is about to be: its body is skipped, its digest compared.

        `is_by_body`: a statement of the body has loaded it.
        """
        address = (self._phase, self._epoch, batch)
        if loaded is FETCHED_IN_BODY:
            self._batches.begin_fetch(address, is_again=True)
        else:
            self._batches.compare(address, loaded, is_by_body=is_by_body)

    def _repeat_streams(self, after: tuple[int, int, int] | None, address: tuple[int, int, int]) -> None:
        """Set the random streams to where they were at the head of a batch, with all that is on record since another one."""
        self.streams.write(self._journal.streams_between(after, address))

    def note_all_streams(self) -> None:
        """Record the random streams at all batches of the phase that is about to begin, whatever the checkpoints' distance."""
        self._notes_all_streams, self._quiet = True, None
        self._streams_at_batch = {}  # the first batch's are recorded whole: what is repeated begins with them

    def note_fetched(self, parts: list[Array], *, is_whole: bool) -> None:
        """Take the digest of what the body of the batch has loaded."""
        if self._batches.note_fetched(parts, is_whole=is_whole) and self.recovery is not None:
            self.recovery.note_fetched(parts)

    def begin_fetch(self) -> None:
        """Record the random streams as Python that fetches a batch finds them, where they are not what they were at its head."""
        self._note_streams((self._phase, self._epoch, self._batch - 1), is_again=True)

    def end_fetch(self) -> None:
        """Record the batch that the running body has fetched; what fetching drew from is recorded at the next head."""
        self._batches.end_fetch()
        if self._streams_at_batch is not None:
            states = self.streams.read()
            self._streams_at_batch = {name: old for name, old in self._streams_at_batch.items() if states.get(name) == old}

    @property
    def is_passing(self) -> bool:
        """Whether the batch that has been loaded lies before the next station, so that its body is skipped."""
        return self._batch <= self._pass_until

    def end_load(self, frame: FrameType) -> None:
        """There was no further batch: the loader has run out. A batch loop outside of any epoch loop is a phase of its own."""
        self.contents.written_last, self._quiet = "", None
        self._entered.end()
        if self.experiment is not None:
            self.experiment.end_load()
        if self.recovery is not None:
            self.recovery.end_load()
        self._batch -= 1
        self._lacks = Cursor(self._phase, self._epoch, self._batch)
        if self._is_implicit:
            self.at_end(1, frame)

    def _check_whole(self, *, is_over: bool = False) -> None:
        """The last loop of an epoch must not have ended where the first run had a batch: of a later loop one is compared.

        `is_over`: the loop over epochs goes on, so the epoch has ended as it should, however its last loop was left.
        """
        is_over &= self._epoch >= 0 and not self._stations  # on the way, bodies of loops without wrappers are passed over unseen
        if self._journal.batches and (self._lacks is not None or is_over):
            self._batches.end_fetch()
            self._batches.require_end(self._lacks or self._batches.behind(self._phase, self._epoch))

    def next_batch(self, frame: FrameType) -> int:
        """Count a batch of a loop that no wrapper announces; return its number in the epoch."""
        if not self._is_in_phase:
            self.begin_phase(frame)
            self._epoch, self._is_implicit = 0, True
            self._entered.begin(None)
        if self._batch == 0 and (self.is_forwarding or self._config.every.unit != "epochs"):
            self._at_first_batch = self._capture.baseline(frame, left=self._left)
        self._batch += 1
        return self._batch - 1

    def at_batch(self, batch: int, loaded: object, frame: FrameType, *, is_first_cut: bool) -> bool:
        """A batch is loaded: record its digest, or skip its body. `is_first_cut`: a hand probe without the loop wrapper."""
        self._check_thread()
        address = (self._phase, self._epoch, batch)
        if is_first_cut:
            self._saves.check()
            self._batch = batch
            if not self._arrive("batch", frame) and not self._stations and self._is_due_in_epoch():
                self._save("batch", frame)
            self._batch = batch + 1
        if self.is_forwarding:
            return False
        if self._trial is not None:
            self._trial.at_batch(self._batches_done)
        if self.experiment is not None:
            self.experiment.end_body()
            self.experiment.begin(address)
            may_differ = self._config.allows_environment or self.experiment.is_struck
            if may_differ != self._batches.may_differ:  # what a fault changes of what is loaded from here on is an outcome
                self._batches.settle()
                self._batches.may_differ = may_differ
        self._batches.is_recording = not self._stations
        if loaded is FETCHED_IN_BODY:
            self._batches.begin_fetch(address)
        else:
            self._is_in_body, self._is_loading = True, False
            self._batches.add(address, loaded)
        self._batches_done += 1
        if self._config.every.unit != "epochs" and not self._notes_all_streams:
            self._streams_at_batch = self.streams.read()  # what loading draws, a resumed run draws again
        return True

    def at_last_line(self) -> None:
        """The program has run to its last line."""
        if self._phase < 0:
            messages.warn("the program has ended without entering a training loop with probes: no checkpoint was taken")

    def finish(self) -> None:
        """The program ends."""
        self._check_whole()
        if not self._saves.has_checkpoint and not self._termination.is_requested:
            self._changes.forget()
        self._batches.end_fetch()
        self._note_alarm("end")
        if self.experiment is not None:
            self.experiment.finish()
        self._batches.settle()
        if self._trial is not None and not self._stations:
            self._trial.at_end("the program", self.adapters.tensors())
        self._saves.finish()

    # Saving.

    def _is_due_in_epoch(self) -> bool:
        every = self._config.every
        if self._batch == 0 or self._epoch_base != self._epoch or self._entered.is_new:
            return False
        if every.unit != "epochs" and self._is_beyond_return():
            return False
        if self._termination.is_requested:
            return every.unit != "epochs"
        if every.unit == "batches":
            return self._batches_done % max(int(every.count), 1) == 0
        return self._saves.is_due_by_time(time.monotonic())

    def _is_beyond_return(self) -> bool:
        """Return whether the batch loops of this epoch up to here cannot be gone through again, and say so when it first is so."""
        path = self._entered.written_between
        if not path and not self._entered.is_behind_break:
            return False
        if not self._has_said_behind:
            self._has_said_behind = True
            why = (
                f"code between the batch loops of an epoch writes {self._files.shown(path)}"
                if path
                else "a batch loop is left before its end, and others follow in the same epoch"
            )
            then = "write it again, without what was trained" if path else "not leave it there"
            messages.say(
                f"{why}: no checkpoint is taken from there to the epoch's end, because a run that resumed behind it would {then}"
            )
        return True

    def _note_streams(self, address: tuple[int, int, int], *, is_again: bool = False) -> None:
        """Record the random streams if the body that has just ended drew from one, or the running one has, before it loads."""
        if self._streams_at_batch is None:
            return
        states = self.streams.read()
        changed = {name: state for name, state in states.items() if self._streams_at_batch.get(name) != state}
        self._streams_at_batch = states if self._notes_all_streams or is_again else None
        if changed:
            noted = self._journal.streams.get(address, {}) if is_again else {}
            self._journal.add_streams(address, {**noted, **changed})

    def _save(self, cut: Cut, frame: FrameType, loop: Loop | None = None) -> None:
        if self.experiment is None or self.experiment.plan.has_checkpoints:
            with self._saves.timed():
                self._take(cut, frame, loop)

    def _take(self, cut: Cut, frame: FrameType, loop: Loop | None) -> None:
        cursor = Cursor(self._phase, self._epoch, self._batch, cut)
        self._batches.settle()
        pool_jobs.wait()
        messages.flush_output()
        self.adapters.flush()
        # At the end of a phase the names of its loop still count as live, though nobody moves them on.
        encoded = self._capture.encode(frame, self._baseline(cut), are_loads_replayed=cut != "epoch", loop=loop)
        self._losses.look(frame, encoded.not_captured, has_updates=self._has_updates)
        forward, positions = self._positions(cut, encoded, loop, frame)
        arrays = encoded.arrays | {f"loader{number:05d}": array for number, array in enumerate(positions.values())}
        if self._trial is not None:
            self._trial.at_cut("saved at", f"{cursor} {cut}")
        tensors, owners = self.adapters.owned()
        meta = Meta(
            phase=cursor.phase,
            epoch=cursor.epoch,
            batch=cursor.batch,
            cut=cursor.cut,
            run=self._config.run,
            program=self._config.program,
            arguments=self._config.arguments,
            sources=self._identity.sources(),
            environment=self._identity.environment(),
            seed=self._config.seed,
            batches_done=self._batches_done,
            journal_bytes=self._journal.size,
            frameworks=self.adapters.state(),
            owners=owners,
            not_captured=tuple(sorted(self._losses.named)),
            item=self._item if cut == "epoch" else "",
            loop=self._loop_at,
            loader=self._loader_key(loop),
            forward=forward,
            loaders=tuple(positions),
            files=self._files.state(),
            guard=self._guard.bounds.state() if self._guard is not None else {},
            folders=self._files.folders(),
            metric=self._saves.metric(frame, cursor, self.adapters.to_array),
            outside={kind: list(values) for kind, values in self._outside.readings.items()},
            weights=self.adapters.weights_files(),
        )
        self._changes.cut(cursor)
        self._saves.save(cursor, Snapshot(meta, tensors, self.streams.read(), encoded.graph, arrays))
        self._batches.settle_next()

    def _positions(self, cut: Cut, encoded: Encoded, loop: Loop | None, frame: FrameType) -> tuple[str, dict[str, Array]]:
        """Return why batches are loaded again by a run that resumes here, and the positions of the frameworks' loaders."""
        mode = self._config.loader
        is_inside = cut in ("load", "batch")
        files = [module.__file__ or "" for module in user_modules().values()]
        is_first = loop is not None and self._entered.is_first(loop, frame)
        reasons = reasons_to_load(loop, encoded, files, frame, is_first=is_first) if is_inside else []
        wanted: Mode = "forward" if reasons else mode
        positions, more = self.adapters.positions(wanted)
        reasons += more
        if is_inside and reasons and wanted != "forward":
            positions, _more = self.adapters.positions("forward")
        return settle(reasons, mode), positions

    def _loader_key(self, loop: Loop | None) -> str:
        """Return the framework's name of what a batch loop goes over; empty if it has none."""
        return "" if loop is None else self.adapters.loader_key(loop.iterator)

    def _baseline(self, cut: str) -> Baseline:
        """Return what was there before the code that a resumed run skips on its way to a cut of this kind."""
        return self._at_phase if cut in ("epoch", "end") else self._at_first_batch

    # Coming back.

    def _arrive(self, cut: Cut, frame: FrameType, loop: Loop | None = None) -> bool:
        """If the next station is here, set its state."""
        if not self._stations:
            return False
        path, cursor = self._stations[0]
        if cursor != Cursor(self._phase, self._epoch, self._batch, cut):
            return False
        messages.stop_forwarding()
        with messages.working("restoring", cursor), opened(path, self.adapters.new_array) as snapshot:
            self._identity.check(snapshot.meta)
            if snapshot.meta.item not in ("", self._item):
                raise Diverged(
                    f"epoch {cursor} is {self._item or 'another'} for the program; it was {snapshot.meta.item} in the first run",
                    "does the program resume by itself, from a checkpoint of its own? Move that away, or start anew with --fresh",
                )
            self._batches.has_sought = cursor in self._sought and (cut == "load" or bool(snapshot.meta.loaders))
            self._restore(snapshot, frame, loop if cursor in self._sought else None)
        self._batches.be_at((cursor.phase, cursor.epoch, cursor.batch))
        self._stations.pop(0)
        if not self._stations:
            self._files.resume(path)
            if self._trial is not None:
                self._trial.at_cut("resumed at", f"{cursor} {cut}")
        self._pass_until = 0
        return True

    def _restore(self, snapshot: Snapshot, frame: FrameType, loop: Loop | None) -> None:
        """Set the state; with `loop`, its loader is set to its position, too."""
        pool_jobs.wait()
        positions = {key: snapshot.arrays[f"loader{number:05d}"] for number, key in enumerate(snapshot.meta.loaders)}
        self.adapters.set_state(snapshot.meta.frameworks, positions, self._config.loader)
        if snapshot.meta.frameworks:
            self._pulls.be_at(None)
        self.adapters.restore(snapshot.tensors, snapshot.meta.owners)
        now, was = self._loader_key(loop), snapshot.meta.loader
        if loop is not None and now != was:  # no digest tells, if the run was killed before the batch behind the cut
            raise Diverged(
                f"the batch loop goes over {now or 'no iterator of tf.data'}; in the first run it went over {was or 'none'}",
                "does the program make other iterators before its loop than it did? Start anew with --fresh",
            )
        self._has_updates = True  # or there would be no checkpoint: see `check_training`
        missing = self._capture.restore(frame, snapshot, self._baseline(snapshot.meta.cut), loop)
        unnamed = [loss for loss in missing if not any(_same_place(loss, _place_of(each)) for each in snapshot.meta.not_captured)]
        if unnamed:
            raise Diverged(
                f"the program is not as it was at the checkpoint: {'; '.join(unnamed[:4])}",
                "restore what was changed, or start anew with --fresh",
            )
        self._refuse_losses(missing, snapshot.meta.not_captured)
        is_last = len(self._stations) == 1
        if is_last and missing:
            messages.warn(f"going on without what was named as not captured: {', '.join(missing[:8])}")
        self.adapters.build_made()
        self._files.restore(snapshot.meta.files, self._catalogue.folder if is_last else None)
        self.streams.write(snapshot.rng)
        if self._notes_all_streams:
            self._streams_at_batch = {}  # the next batch's are recorded whole: the journal was cut before them
        self._batches_done = self._claims_from = snapshot.meta.batches_done
        if self._guard is not None:
            self._guard.bounds.set_state(snapshot.meta.guard)
        self._losses.named.update(snapshot.meta.not_captured)
        if snapshot.meta.cut == "epoch":
            self._epoch_base = snapshot.meta.epoch
        self._saves.last_at = time.monotonic()

    def _refuse_losses(self, missing: list[str], named: tuple[str, ...]) -> None:
        """What the run would go on wrong without was named when it was saved."""
        for loss in named:
            if loss.startswith(COUNTED):
                raise NotCapturable(f"{loss}, is lost", "draw by a plain `for x in ...` over it, and start anew with --fresh")
            if is_refused(loss):
                raise NotCapturable(
                    f"no checkpoint holds {loss}: the run would go on with what it says without the steps that are passed over",
                    "keep what it knows in objects of the program, make it anew in each run of a loop, or start anew with --fresh",
                )
        for loss in missing:
            if any(_same_place(loss, _place_of(each)) and each.endswith(f"{WITH_VARIABLES})") for each in named):
                raise NotCapturable(
                    f"{loss!r} was made in the loop, with variables that cannot be put back into another one",
                    "make it before the loop, and start anew with --fresh",
                )

    def _place(self) -> Cursor | None:
        """Return where in a loop with probes the program is."""
        return Cursor(self._phase, self._epoch, self._batch) if self._is_in_phase else None

    def _check_claims(self) -> None:
        """After the first body of a resumed run: see that what it has made took the values that were restored for it."""
        if self._claims_from is None or self._batches_done == self._claims_from:
            return
        self._claims_from = None
        unclaimed = self.adapters.unclaimed()
        if unclaimed:
            raise Diverged(
                f"variables were made anew, and no value was restored for them: {', '.join(unclaimed[:4])}",
                "make them before the loop (build the model, call the function once), and start anew with --fresh",
            )

    def _end(self, how: str) -> None:
        """End as SIGTERM ends a process, with everything written."""
        self.finish()
        messages.say(f"ended by SIGTERM {how}; run it again to go on")
        messages.flush_output()
        os.kill(os.getpid(), signal.SIGTERM)


def _same_place(one: str, other: str) -> bool:
    """Return whether two paths (`games in main()[0].env`) are equal but for the function that their first name is of."""

    def parts(path: str) -> tuple[str, str]:
        name, _, rest = path.partition(" in ")
        return name, rest.partition("()")[2]

    return one == other or (" in " in one and parts(one) == parts(other))


def _place_of(named: str) -> str:
    """Return the path of what was named as `PATH (KIND)`."""
    return named.partition(" (")[0]
