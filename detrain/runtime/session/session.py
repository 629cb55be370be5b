"""The run of one program: it takes the probes' calls, moves the position on, and has the work at each cut done.

The probes (detrain.runtime.session.probes) tell the session where the program is. Cuts, in the order in which an epoch
passes them: `epoch` (record_epoch), then for each batch `load` (before it is loaded), and `end` when the epoch loop
has run out. To resume, the session passes *stations* (`resume_plan`): checkpoints on the way to the newest one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import msgspec

from detrain.base import messages, timing
from detrain.base.config import SELDOM, Config
from detrain.base.cursor import NOTHING
from detrain.base.digest import Array
from detrain.base.errors import DetrainError, FaultInvalid
from detrain.python.codec.baseline import Baseline
from detrain.python.loaders.strategy import RunningLoop
from detrain.runtime.session.cuts import Cuts
from detrain.runtime.session.parts import Parts
from detrain.runtime.state.resume_plan import way_back
from detrain.store.chronicle import Ended, now

_LOOKS: Final = 4
"""At the first so many batches of a loop's first epoch the session looks which numbers of libraries change."""


_TURNS: Final = 4
"""In the first so many turns of an epoch loop without batches the session waits for the updates that tell its kind."""


class Session:
    """The state of detrain in the user's process, one a process."""

    def __init__(self, config: Config) -> None:
        self.parts = parts = Parts(config)
        self._cuts = Cuts(parts)
        self._rewind, self._termination, self._writer = parts.rewind, parts.termination, parts.saves.writer
        self.position, self.plan, self.recorder = parts.position, parts.plan, parts.recorder
        self._quiet: object = None
        """The loop (its `iteration_id`) that is quiet: its next turns are only counted. None if there is none."""
        self._quiet_until = 0
        """The first batch that is no longer quiet."""
        self._is_by_epoch = config.every.unit == "epochs"
        self._may_be_quiet = self._has_no_cuts(config)
        self._is_confirmed = False

    def _has_no_cuts(self, config: Config) -> bool:
        """Return whether no checkpoint inside of an epoch is due by `--every`, and none is asked for there."""
        is_seldom = config.every.count >= SELDOM and not config.after_batches
        return self._is_by_epoch or (is_seldom and not self.parts.observers)

    # Loops over epochs.

    def begin_phase(self, frame: FrameType) -> None:
        """Begin a phase, as the program enters an epoch loop (or a batch loop outside of one)."""
        parts, position, batches = self.parts, self.position, self.recorder.batches
        timing.enter("loop entered, and what is there looked at")
        self._cuts.look("end")
        batches.end_fetch()
        batches.require_phase_end(position.phase)
        position.begin_phase()
        parts.world.enter()
        position.enter(frame)
        if position.phase == 0:
            # Now, and not only at the first save, read the sources of modules that were loaded past Python's import.
            parts.identity.sources()
        self.plan.require_same_loop(frame)
        position.begin_loop()
        self.plan.begin_epoch()
        if self._rewind is not None:
            self._rewind.begin_phase()
        parts.checkpointer.begin_phase()
        self._quiet = None
        parts.adapters.begin_phase()
        parts.find_streams()
        parts.meet()  # after all checks that may refuse the program: connected ranks would take that for a death
        self.recorder.begin_phase(is_held=parts.just_in_time is not None)
        parts.baselines.at_phase, parts.baselines.left = parts.capture.begin_phase(frame), Baseline()
        self.recorder.hold(lambda: parts.capture.held_generators(frame))
        parts.uncaptured.begin_pulls()
        if self.recorder.pulls:
            self.note_all_streams()
        timing.enter("loop, up to the cut" if self.plan.is_resuming else "first new step")

    def _begin_alone(self, frame: FrameType) -> None:
        """Begin a phase for a batch loop outside of any epoch loop."""
        self.begin_phase(frame)
        self.position.epoch, self.position.is_implicit = 0, True
        self.parts.checkpointer.entered.begin(None)

    def at_epoch(self, epoch: int, frame: FrameType, item: object = None) -> None:
        """Cut: an epoch starts. `item` is the epoch loop's item: mostly the program's own number of the epoch."""
        parts, position, cuts = self.parts, self.position, self._cuts
        position.check_thread()
        if self.is_returning:  # the work of this cut was done when the epoch first began
            position.begin_epoch(epoch)
            return
        cuts.require_whole(is_over=position.is_in_phase)
        position.item = repr(item) if type(item) in (int, float, str) else ""
        last_took = parts.checkpointer.begin_epoch()
        cuts.end_body("epoch", frame)
        cuts.look("epoch")
        if position.epoch >= 0:
            cuts.end_epoch(frame)
            if self._rewind is not None and not self.plan.is_resuming:
                self._rewind.begin_epoch(frame)
        position.begin_epoch(epoch)
        self.plan.begin_epoch()
        self._quiet = None
        parts.checkpointer.entered.begin(frame)
        if not self._is_by_epoch:
            parts.baselines.left = parts.capture.left(frame, parts.baselines.at_phase)
        self.recorder.begin_epoch()
        if not self.plan.is_resuming:
            for observer in parts.observers:
                observer.begin_epoch(position.cursor("epoch"))
        if cuts.arrive("epoch", frame) or self.plan.is_resuming or epoch == 0 or self._may_be_a_batch_loop:
            return
        if parts.checkpointer.is_due_at_epoch(last_took) or parts.termination.is_requested:
            cuts.save("epoch", frame)

    def at_end(self, epochs: int, frame: FrameType) -> None:
        """Cut: the epoch loop has run out after so many epochs."""
        cuts = self._cuts
        cuts.require_whole(is_over=True)
        cuts.tell("end")
        cuts.look("end")
        if epochs > 0:
            cuts.end_epoch(frame)
        self._end_loop()
        if self._rewind is not None and self._rewind.returns():
            return
        self.position.epoch, self.position.batch = epochs, 0
        if not cuts.arrive("end", frame):
            self.plan.require_passed(epochs)
            if not self.plan.is_resuming and epochs > 0:
                cuts.save("end", frame)
        self.end_phase()

    def _end_loop(self) -> None:
        for observer in self.parts.observers:
            observer.end_loop()

    def end_phase(self, frame: FrameType | None = None) -> None:
        """End the phase, as the program has left the epoch loop; `frame`: in this frame, from the body of a batch."""
        self._cuts.require_whole()
        self.recorder.batches.end_fetch()
        self._cuts.tell("end")
        self._cuts.look("end")
        if self.position.is_in_phase:
            if frame is not None:
                for observer in self.parts.observers:
                    observer.end_body("end", frame)
            self._end_loop()
            if self._rewind is not None:
                self._rewind.leave_loop()
            for observer in self.parts.observers:
                observer.end_phase()
        self.position.end_phase()
        self.parts.checkpointer.entered.threads.end_phase()
        if self.parts.just_in_time is not None:
            self.parts.just_in_time.mark("behind the loop")  # a test of the model takes longer than an epoch's end
        self.recorder.notes_all = False
        self.parts.adapters.end_phase()

    @property
    def is_returning(self) -> bool:
        """Whether a trial has run over the end of its epoch, and the run is on its way back into that epoch."""
        return self._rewind is not None and self._rewind.is_returning

    def next_epoch(self, count: int) -> tuple[int, Any]:
        """Return the next epoch and the item that was handed out with it; NOTHING if the epoch is a new one."""
        return (count, NOTHING) if self._rewind is None else self._rewind.next_epoch(count)

    def keep_epoch(self, iterator: Iterator[Any], count: int, item: object) -> None:
        """Note that an epoch is handed out."""
        if self._rewind is not None:
            self._rewind.keep_epoch(iterator, count, item)

    # Loops over batches.

    def at_load(self, frame: FrameType, loop: RunningLoop) -> int:
        """Cut: a batch of a loop is about to be loaded. Returns its number in the epoch."""
        parts, cuts, position, plan, recorder = self.parts, self._cuts, self.position, self.plan, self.recorder
        recovery, contents = parts.recovery, parts.world.contents
        position.check_thread()
        position.is_loading = True
        source = None if loop.iteration_id is None else loop
        cuts.end_body("load", frame)
        parts.saves.check()
        if not position.is_in_phase:
            self._begin_alone(frame)
        recorder.begin_load()
        if position.batch < _LOOKS and position.epoch <= 0:
            parts.capture.look()
        if position.batch == 0 and recorder.elements.is_python and not recorder.holds:
            recorder.hold(lambda: parts.capture.held_generators(frame))
        parts.checkpointer.entered.note(loop, frame, position.batch, contents.written_last)
        contents.written_last = ""
        if plan.passes_next:
            if plan.loading is not None:
                plan.loading.reach(position.batch)
            recorder.set_streams(position.moment())
            return position.next_batch()
        if cuts.look("load", source, frame) or self.is_returning:
            return position.next_batch()
        address = position.moment()
        if position.batch == 0 and (plan.is_forwarding or not self._is_by_epoch or recovery is not None):
            parts.baselines.at_first_batch = parts.capture.baseline(frame, loop, parts.baselines.left)
        if position.batch == 0 and not plan.is_resuming and parts.checkpointer.is_asked_for("load"):
            cuts.save("load", frame, loop)
        if plan.jumps_here():
            cuts.jump()
        if plan.is_forwarding:
            plan.aim()
            if not cuts.arrive("load", frame, loop):
                cuts.load_again(frame)
                recorder.set_streams(address)
        elif not plan.is_resuming:
            recorder.note_streams(address)
            if not self._is_by_epoch and not loop.is_fetched_in_body:
                parts.checkpointer.entered.reads.at_head(loop.iterable)
            if recovery is None or not recovery.is_again:
                cuts.save_in_epoch("load", frame, loop)
        if recovery is not None and not plan.is_resuming:
            recovery.hold(position.moment(), position.batches_done, source, frame)
        cuts.end_if_overdue()
        entered = parts.checkpointer.entered
        is_quiet = self._may_be_quiet and self._has_nothing_to_do() and not (loop.is_fetched_in_body or entered.is_at_first)
        self._quiet_until = self._next_told() if is_quiet else 0
        self._quiet = loop.iteration_id if is_quiet and position.batch < self._quiet_until else None
        return position.next_batch()

    def _next_told(self) -> int:
        """Return the number of the epoch's next batch with a body that an observer must be told of: the batch that is
        about to be loaded, or a later one.
        """
        here, done, moment = self.position.moment(), self.position.batches_done, self.parts.moment
        told = [each.next_body(here, done) for each in self.parts.observers]
        return min([*told, sys.maxsize if moment is None else moment.next_body(here)])

    def _has_nothing_to_do(self) -> bool:
        """Return whether the next turns of the running loop need only be counted, until some other event."""
        is_on_its_way = self.plan.is_resuming or not self.parts.restorer.is_settled
        takes_turns = self.parts.checkpointer.entered.threads.take_turns
        is_settled = not is_on_its_way and not timing.is_running()
        return is_settled and self.parts.recovery is None and self.recorder.is_quiet and not takes_turns

    def turn(self, loop: RunningLoop) -> int:
        """Return the number of the batch that is about to be loaded, or -1 if `at_load` must be called.

        In a quiet loop no checkpoint is taken before the next epoch, so nobody needs the run's place in this one; or
        none before the next state that is held just in time, and the notes of that cut cover the turns before it. After
        a training step the processor's caches hold none of this code: a call that is left out does not slow the next
        step.
        """
        if self._quiet is not loop.iteration_id or self._termination.is_requested or self._writer.has_failed:
            return -1
        position, held = self.position, self.parts.just_in_time
        if position.batch >= self._quiet_until:
            return -1
        if held is not None:
            if not held.passes(position.batches_done):
                return -1
            self.parts.world.contents.written_last = ""  # a body wrote it, not code between loops
        position.is_loading = True
        position.batch += 1
        return position.batch - 1

    def record_batch_fast(self, batch: int, loaded: object) -> bool:
        """Record a batch's digest as its body is about to run; return False if `at_batch` must be called."""
        if self._quiet is None:
            return False
        position, batches = self.position, self.recorder.batches
        position.is_in_body = batches.is_recording = True
        position.is_loading = False
        batches.add((position.phase, position.epoch, batch), loaded)
        position.batches_done += 1
        return True

    def next_batch(self, frame: FrameType) -> int:
        """Count a batch of a loop without the wrapper; return its number in the epoch."""
        if not self.position.is_in_phase:
            self._begin_alone(frame)
        if self.position.batch == 0 and (self.plan.is_forwarding or not self._is_by_epoch):
            baselines = self.parts.baselines
            baselines.at_first_batch = self.parts.capture.baseline(frame, left=baselines.left)
        return self.position.next_batch()

    def at_batch(self, batch: int, loaded: object, frame: FrameType, *, is_first_cut: bool) -> bool:
        """Record the digest of a batch that has been loaded, or skip its body. Return whether the body runs.

        `is_first_cut`: the probe was called by hand, without the loop wrapper.
        """
        position = self.position
        position.check_thread()
        address = (position.phase, position.epoch, batch)
        entered = self.parts.checkpointer.entered
        entered.begin_body()
        if is_first_cut:
            self.parts.saves.check()
            position.batch = batch
            if not self._cuts.arrive("batch", frame) and not self.plan.is_resuming:
                self._cuts.save_in_epoch("batch", frame)
            position.batch = batch + 1
        if self.plan.is_forwarding:
            return False
        entered.reads.behind_load()
        for observer in self.parts.observers:
            observer.begin_body(address)
        self.recorder.batches.is_recording = not self.plan.is_resuming
        self.recorder.begin_batch(address, loaded)
        if self.parts.moment is not None and self.parts.moment.is_reached(address):
            self.recorder.batches.record_waiting()
            self.parts.saves.journal.flush()  # it is compared with the first run's
            self.parts.moment.stand(address, frame)
        return True

    def require_a_batch(self, loaded: object, frame: FrameType) -> None:
        """Raise FaultInvalid if the run puts faults in, and a statement's loaded batch was computed with weights: no
        fault can be put into that computation.
        """
        if self.parts.experiment is not None and self.parts.adapters.is_computed(loaded):
            where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            raise FaultInvalid(
                f"the statement before {where} loads a batch and runs the model on it: no fault can be put into its forward pass",
                "load the batch in a statement of its own: x = …, then out = model(x)",
            )

    def note_fetched(self, parts: list[Array], *, is_whole: bool) -> None:
        """Take the digest of arrays that the batch's body has loaded."""
        if self.recorder.note_fetched(parts, is_whole=is_whole) and self.parts.recovery is not None:
            self.parts.recovery.note_fetched(parts)

    def note_all_streams(self) -> None:
        """Record the random streams at all batches of the phase that is about to begin."""
        self._quiet = None
        self.recorder.note_all_streams()

    def end_load(self, frame: FrameType) -> None:
        """End the batch loop: its loader has run out, and there was no further batch."""
        parts = self.parts
        parts.world.contents.written_last, self._quiet = "", None
        parts.checkpointer.entered.end(self.position.batch - 1)
        if parts.just_in_time is not None:
            parts.just_in_time.mark("behind the batches")
        for observer in parts.observers:
            observer.end_load()
        if parts.recovery is not None:
            parts.recovery.end_load()
        self.position.batch -= 1
        self.recorder.end_loop()
        if self.position.is_implicit:
            self.at_end(1, frame)

    # Updates, and the end.

    def on_update(self, what: int) -> None:
        """Note that weights are updated: in the body of a loop with probes, as expected, or elsewhere."""
        self.parts.checkpointer.has_updates = True
        if self.position.is_in_body and not self._is_confirmed:
            self._is_confirmed = True
            self.parts.confirmation.in_body()
        elif not self.position.is_in_phase or self._has_run_an_epoch_without_batches:
            self.parts.confirmation.outside(what, is_in_epoch=self.position.is_in_phase)

    @property
    def _may_be_a_batch_loop(self) -> bool:
        """Whether the next updates may show that the epoch loop is a batch loop, as long as no checkpoint counts it."""
        is_early = self.position.epoch < _TURNS and not self._is_by_epoch and self.parts.confirmation.may_start_again
        return is_early and self._has_run_an_epoch_without_batches

    @property
    def _has_run_an_epoch_without_batches(self) -> bool:
        return self.position.epoch > 0 and not self.position.batches_done and not self.position.is_in_body

    @property
    def expects_updates(self) -> bool:
        """Whether an update that comes now is one of many, and need not be noted."""
        return self.position.is_in_body and self._is_confirmed and self.parts.checkpointer.has_updates

    def at_last_line(self) -> None:
        """Check, as the program has run to its last line, that it passed all stations; warn if it never trained."""
        self.plan.require_over()
        if self.position.phase < 0:
            messages.warn("the program has ended without entering a training loop with probes: no checkpoint was taken")

    def choose(self, options: dict[str, Any]) -> None:
        """Take the options of a notebook's training cell, which are known only just before the first loop."""
        config = self.parts.config
        for name, value in options.items():
            msgspec.structs.force_setattr(config, name, value)
        self._is_by_epoch = config.every.unit == "epochs"
        self._may_be_quiet = self._has_no_cuts(config)
        self.recorder.choose(config.every)

    def way_back(self, error: DetrainError) -> str:
        """Return, in words, an earlier checkpoint from which a refused resume can go on."""
        return way_back(error, self.parts.config, self.parts.catalogue, self.parts.plan.passed)

    def note_end(self, error: DetrainError) -> None:
        """Note in the chronicle that an error of detrain ends the process."""
        self.parts.saves.note(Ended(now(), os.getpid(), f"detrain: {error.slug}"))

    def finish(self) -> None:
        """Finish all work, as the program ends."""
        raised = getattr(sys, "last_type", None)  # Python has printed it
        self._cuts.finish(raised.__name__ if raised is not None else "")
