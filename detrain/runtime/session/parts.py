"""The parts of a session, and the order in which they are made.

Parts that few runs have are imported only in runs that have them, and before the program begins, so that no module of
the program hides one of Python's.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detrain.adapters.api import Adapter, Settings
from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.config import MOMENT, OUTLIVING, Config, ended_by_nccl
from detrain.base.errors import EnvironmentChanged, FrameworkUnsupported, RanksApart
from detrain.faults.experiment import Experiment, of_environment
from detrain.python.codec.baseline import Baseline
from detrain.python.outside.open_files import Files
from detrain.python.process.random_streams import Streams
from detrain.python.process.sigterm import Termination
from detrain.runtime.observers.observers import ExperimentObserver, Observer, VerifyObserver
from detrain.runtime.observers.verify_hooks import VerifyPlan
from detrain.runtime.session.batch_recorder import BatchRecorder
from detrain.runtime.session.checkpointer import Checkpointer, StateParts
from detrain.runtime.session.restorer import Restorer
from detrain.runtime.session.saves import Saves
from detrain.runtime.session.world import World
from detrain.runtime.state.capture import Capture
from detrain.runtime.state.identity import Identity
from detrain.runtime.state.position import Position
from detrain.runtime.state.resume_plan import ResumePlan
from detrain.runtime.state.uncaptured import Uncaptured
from detrain.runtime.state.whole_state import WholeState
from detrain.store import Catalogue, read_meta
from detrain.tracer.confirmation import Confirmation

if TYPE_CHECKING:
    from detrain.guard.detector import Guard
    from detrain.runtime.observers.experiment_run import ExperimentRun
    from detrain.runtime.observers.moment import MomentReached
    from detrain.runtime.observers.rewind import Rewind
    from detrain.runtime.rollback.ring import Ring
    from detrain.runtime.session.just_in_time import JustInTime


class Baselines:
    """The values that were there before the code that a resumed run skips on its way to a cut."""

    def __init__(self) -> None:
        self.at_phase, self.at_first_batch = Baseline(), Baseline()
        """Those when the phase was entered, and those when the epoch's first batch was about to be loaded."""
        self.left = Baseline()
        """Values left from earlier epochs at the epoch's start, which no code reads again."""

    def set_at_first_batch(self, found: Baseline) -> None:
        """Set the values before the load of an epoch's first batch, as the run has gone back into that epoch."""
        self.at_first_batch = found

    def of(self, cut: str) -> Baseline:
        """Return the baseline for a cut of this kind."""
        return self.at_phase if cut in ("epoch", "end") else self.at_first_batch


class Parts:
    """All parts of a session.

    The parts that watch files come last, so that they do not take detrain's own files for the program's.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalogue = catalogue = Catalogue(Path(config.home))
        self._metas = metas = [read_meta(Path(path)) for path in config.stations]
        self.position = position = Position()
        self.trial = trial = VerifyPlan.of_environment()
        if trial is not None:
            trial.at_cut("started at", "")
        self.plan = ResumePlan(config, metas, position, trial.jumps if trial is not None else ())
        self.saves = Saves(config, catalogue, metas[-1].journal_bytes if metas else None)  # takes the lock
        self.adapters, self.streams, self.baselines = Adapters(), Streams(), Baselines()
        self.files = Files()
        self.files.allowed = config.allow_lost
        self.termination = Termination(lambda: position.is_in_phase)
        if config.on_sigterm == "checkpoint" and config.ranks is None:  # one rank of a job cannot end at a cut alone
            self.termination.watch()
        plans = of_environment()
        self.experiment: ExperimentRun | None = self._experiment(plans) if plans else None
        self.recorder = BatchRecorder(config, self.saves.journal, self.adapters, self.streams, position)
        self.capture = Capture(self.adapters, self.files, self.recorder.pulls)
        self.guard: Guard | None = None
        self.guards_gradients = False
        self.recovery: Ring | None = None
        """Looks for hardware faults at each cut, and takes the run back to before them."""
        self.confirmation = Confirmation(config, lambda at: self.world.enter(at), lambda: self.saves.has_checkpoint)  # noqa: PLW0108  it comes later
        known = trial.outside if trial is not None else {}
        is_restart = self.confirmation.is_restart
        self.world = World(config, self.files, catalogue, metas, known, position.place, is_restart=is_restart)
        if self.experiment is not None:
            self.experiment.written = self.world.contents.all_written
        now = lambda: position.batches_done  # noqa: E731
        beside = (self.world.contents, self.recorder.pulls, now)
        self.uncaptured = Uncaptured(self.adapters, self.streams, *beside, is_strict=config.strict, allowed=config.allow_lost)
        self.recorder.batches.suspects = self.uncaptured.named
        baseline = lambda: self.baselines.at_first_batch  # noqa: E731
        parts = (self.capture, self.adapters, self.streams, self.files, self.world.contents, self.uncaptured)
        self._whole = WholeState(*parts, baseline, catalogue.folder)
        if config.guard:
            mode, ring = config.guard, config.guard_ring
            self.add_guard(mode=mode, on_repeat=config.on_repeat, gradients=config.guard_gradients, ring=ring)
        self.rewind: Rewind | None = None
        if len(plans) > 1:
            from detrain.runtime.observers.rewind import Rewind
            from detrain.runtime.observers.trials_in_process import TrialsInProcess

            assert isinstance(self.experiment, TrialsInProcess)
            self.recovery = self.rewind = Rewind(self.experiment, self._whole, self.guard, self.baselines.set_at_first_batch)
        read = self.files.settings
        self.identity = Identity(config.environment, self.adapters, config.edits, read, may_differ=config.allow_environment)
        self.moment = self._moment_asked_for(now) if MOMENT in os.environ else None
        self.observers = [*self._observers()]
        state = StateParts(
            position=position,
            world=self.world,
            adapters=self.adapters,
            streams=self.streams,
            capture=self.capture,
            recorder=self.recorder,
            uncaptured=self.uncaptured,
            identity=self.identity,
            guard=lambda: self.guard,
        )
        cuts = trial.cuts if trial is not None else None
        self.checkpointer = Checkpointer(config, self.saves, state, self.observers, cuts)
        self.restorer = Restorer(config, catalogue, state)
        self.just_in_time: JustInTime | None = None
        if config.jit is not False:
            from detrain.runtime.session import just_in_time  # noqa: F401  `meet` needs it later
        self._has_met = False

    def _experiment(self, plans: list[Experiment]) -> ExperimentRun:
        from detrain.runtime.observers.experiment_run import ExperimentRun
        from detrain.runtime.observers.trials_in_process import TrialsInProcess

        kind = TrialsInProcess if len(plans) > 1 else ExperimentRun
        return kind(plans, self.adapters.tensors_now, self.saves.drain)

    def _moment_asked_for(self, now: Callable[[], int]) -> MomentReached | None:
        from detrain.runtime.observers.moment import MomentReached
        from detrain.runtime.observers.moment_asked import AskedMoment

        asked_for = AskedMoment.of_environment()
        return MomentReached(asked_for, self.adapters, now) if asked_for is not None else None

    def _observers(self) -> Iterator[Observer]:
        """Yield the observers of cuts."""
        position, batches = self.position, self.recorder.batches
        if self.experiment is not None:
            yield ExperimentObserver(self.experiment, lambda: self.guard, position, self.plan, self.adapters, batches, self.config)
        if self.trial is not None:
            yield VerifyObserver(self.trial, position, self.plan, self.adapters)

    def meet(self) -> None:
        """Connect the job's ranks before the first training loop. Raises FrameworkUnsupported, RanksApart."""
        jit, backend = self.config.jit, self.adapters.environment().get("torch distributed", "none")
        if jit is False or self._has_met:
            return
        self._has_met = True
        if not hasattr(select, "epoll"):
            if jit:
                raise FrameworkUnsupported("--jit needs Linux: the ranks watch each other by epoll", "run it without --jit")
            messages.say("no just-in-time checkpoints: they need Linux")
            return
        if not jit and backend != "gloo":
            messages.say(f"no just-in-time checkpoints: they were tried over gloo, this is {backend}; --jit takes them")
            return
        if "nccl" in backend and (by := ended_by_nccl(os.environ)):
            raise FrameworkUnsupported(
                f"--jit over NCCL: PyTorch ends a rank whose peer has died, maybe before it has saved: {by}",
                f"set {' '.join(f'{name}={value}' for name, value in OUTLIVING.items())}, as `detrain launch --jit` does where "
                "they are not set, and no debugging of collectives; or run it without --jit",
            )
        from detrain.runtime.session.just_in_time import JustInTime

        try:
            self.just_in_time = JustInTime(self.config, self.adapters.replicas)
        except RanksApart as error:
            if jit:
                raise
            messages.warn(f"no just-in-time checkpoints: {error.what}")

    def add_guard(self, *, mode: str, on_repeat: str, gradients: bool, ring: str) -> None:
        """Look for hardware faults from here on. The arguments are the options of `detrain run --guard`."""
        from detrain.guard.detector import Guard
        from detrain.runtime.rollback.ranks_together import RanksTogether
        from detrain.runtime.rollback.recovery import Recovery

        self.guards_gradients = gradients
        if gradients:
            self.adapters.watch_gradients()
        config, recovers, goes_on = self.config, mode == "recover", on_repeat == "continue"
        log = self.catalogue.folder / f"{config.program}-r{config.run}.alarms.jsonl"
        is_first = not config.is_restarted and not config.stations
        self.guard = Guard(recovers=recovers, goes_on=goes_on, log=log, adapters=self.adapters, is_first=is_first)
        ranks = RanksTogether(config.ranks, self._is_ending) if recovers and config.ranks is not None else None
        self.recovery = Recovery(
            self.guard,
            self._whole,
            config,
            self._write_waiting,
            on_host=ring == "host",
            ranks=ranks,
            end_saving=self._end_saving,
        )

    def _is_ending(self) -> bool:
        return self.just_in_time is not None and self.just_in_time.is_ending

    def _end_saving(self) -> None:
        if self.just_in_time is not None:
            self.just_in_time.finish()

    def settings(self, probes: object, on_update: Callable[[int], None], on_assign: Callable[[int], None]) -> Settings:
        """Return the settings with which an adapter is made."""
        return Settings(
            seed=self.config.seed,
            threads=self.config.threads,
            probes=probes,
            on_update=on_update,
            on_assign=on_assign,
            answers=self.world.answers,
            contents=self.world.contents,
            experiment=self.experiment,
            unchanged=self.capture.unchanged,
            moment=self.position.moment,
            elements=self.recorder.elements,
            ranks=self.config.ranks,
            on_peer_error=self._on_peer_error if self.config.jit is not False else None,
            on_unheld=self._on_unheld if self.config.jit is not False else None,
        )

    def attach(self, adapter: Adapter) -> None:
        """Take in the adapter of a framework that has been imported. Raises FrameworkUnsupported if the guard does not
        know that framework, EnvironmentChanged if devices of the checkpoint are not here.
        """
        if self.config.guard and (adapter.norms is None or (self.config.ranks is not None and not adapter.norms.reads_ranks)):
            where = "" if adapter.norms is None else ", in a job of several processes"
            raise FrameworkUnsupported(
                f"--guard {self.config.guard}: the guard does not know yet what to look at in {adapter.name}{where}",
                "run it without --guard",
            )
        self._require_devices(adapter)
        self.adapters.add(adapter)
        if self.guards_gradients and adapter.norms is not None:
            adapter.norms.watch_gradients()
        if adapter.leaves.constant_type is not None:
            self.recorder.batches.register_immutable(adapter.leaves.constant_type)
        for name, stream in adapter.random.streams().items() if adapter.random is not None else ():
            self.streams.add(name, stream)

    def find_streams(self) -> None:
        """Count the generators of random numbers that libraries hold, as a loop is entered, as streams."""
        for name, stream in self.uncaptured.held.look().items():
            self.streams.add(name, stream)

    def _require_devices(self, adapter: Adapter) -> None:
        """Check, before the program needs them, that the devices of the checkpoint's tensors are here."""
        devices, maps = adapter.devices, self.config.map_device == "cpu"
        if devices is None:
            return
        states = [bytes(meta.frameworks[adapter.name]) for meta in self._metas if adapter.name in meta.frameworks]
        gone = ", ".join(sorted({device for state in states for device in devices.missing(state)}))
        if gone and not maps:
            raise EnvironmentChanged(
                f"the checkpoint has tensors on {gone}, which {adapter.name} does not find here",
                "resume where it is, or go on on the CPU, with other bits: --allow-environment --map-device cpu",
            )
        if gone and devices.others():
            raise EnvironmentChanged(
                f"--map-device cpu puts all on the CPU, and of the checkpoint's devices only {gone} is not here",
                "hide the others from the program (CUDA_VISIBLE_DEVICES=)",
            )
        if gone:
            devices.map_to_cpu()
            messages.warn(f"what was on {gone} goes on on the CPU: from here on other kernels compute, to other bits")
        elif maps and states:
            messages.say("--map-device cpu: no tensor of the checkpoint was on a device that is not here, nothing is moved")

    def _on_unheld(self, why: str) -> bool:
        is_news = self.just_in_time.give_up() if self.just_in_time is not None else not self._has_met
        self._has_met = True
        if is_news:
            messages.say(f"no just-in-time checkpoints: {why}")
        return self.config.jit is True

    def _on_peer_error(self, error: BaseException) -> None:
        if self.just_in_time is not None:
            self.just_in_time.rest_if_echo(error)

    def _write_waiting(self) -> None:
        """Write everything that waits to be written."""
        self.recorder.batches.record_waiting()
        self.saves.journal.flush()
        self.saves.drain()
