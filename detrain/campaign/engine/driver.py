"""The driver of a campaign: gives what is missing to workers until nothing is. It has no state: what is in the ledgers
is all that is known, and it may be killed at any moment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.errors import CampaignStopped, HomeInUse, StoreError, last_printed
from detrain.campaign import full_disk
from detrain.campaign.batch_of_trials import left_running
from detrain.campaign.engine.api import Engine, Lease, WorkerEnded
from detrain.campaign.engine.header import Campaign
from detrain.campaign.engine.ledger import Ledger, Ledgers
from detrain.campaign.engine.rows import crash_row, told_row
from detrain.campaign.engine.work import DetrainWork, How, ordered
from detrain.campaign.trials_done import to_loop
from detrain.faults.outcome_classes import Verdict, verdict_of
from detrain.faults.population.plan import SampledPlan
from detrain.faults.population.stopping import Look, last_look
from detrain.faults.population.trial_row import OUTSIDE
from detrain.faults.statistics.intervals import Looks
from detrain.store.lock import hold

_LARGEST: Final = 2048
"""Trials of a lease, at most."""
_LEAST: Final = 256
"""And at least: a process starts for each."""
_FEWEST: Final = 16
"""But so few, where a slot would have none otherwise."""
_SHARES: Final = 3
"""Leases of each slot, so that none is long idle in the end."""
_MOST_LOST: Final = 2
"""So often a worker dies in a trial before that is the trial's doing."""
_MOST_IN_VAIN: Final = 6
"""Workers in a row that end without a trial done, before the campaign stops."""
_OWN_ERRORS: Final = range(64, 100)
"""Exit statuses of detrain's errors."""
_DRIVER: Final = "driver"
_LOOKS_S: Final = 1.0


class Progress(msgspec.Struct, frozen=True):
    """How far a campaign is."""

    count: int
    done: int
    """Trials of which a row is there."""
    unfired: int
    shares: dict[str, int]
    """Trials by outcome."""
    seconds: float = 0.0
    """Since the driver has started."""
    new: int = 0
    """Trials done since then."""
    look: Look | None = None
    """The planned look at which the campaign has stopped before its end."""

    @property
    def rate(self) -> float:
        """Trials an hour, of this driver."""
        return self.new / self.seconds * 3600 if self.seconds else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this rate."""
        missing = self.count - self.done - self.unfired
        return missing / self.rate * 3600 if self.rate else None


class StopAt(msgspec.Struct, frozen=True):
    """How near the share of harmful trials is to be known, for the campaign to stop at a planned look."""

    half_width: float
    """0.01 is ± 1 %."""
    confidence: float

    def look(self, campaign: Campaign) -> Look | None:
        """Return what the last planned look finds that all trials before are done for."""
        plan, ledgers = campaign.plan, Ledgers(campaign.ledgers, campaign.plan.digest)
        strata = plan.strata if isinstance(plan, SampledPlan) else None
        rows = [row for row in ledgers.rows() if row.number < plan.count and row.outcome != OUTSIDE]
        no_trials = [number for number in range(plan.count) if plan.told(number) == OUTSIDE]
        is_harmful = lambda row: verdict_of(row.outcome) is Verdict.HARMFUL  # noqa: E731
        return last_look(rows, [*ledgers.unfired(), *no_trials], self._looks(plan.count), is_harmful, self.half_width, strata)

    def next(self, count: int, missing: int) -> int:
        """Return before which number all trials are done next, where `missing` is the first that is not."""
        return next((at for at in self._looks(count).at if at > missing), count)

    def _looks(self, count: int) -> Looks:
        return Looks(count, self.confidence)


def progress_of(campaign: Campaign, seconds: float = 0.0, before: int = 0, numbers: Sequence[int] | None = None) -> Progress:
    """Return how far a campaign is; `before`: what was known when its driver started, so many seconds ago.

    `numbers`: of the trials that are wanted, if these are not all.
    """
    ledgers = Ledgers(campaign.ledgers, campaign.plan.digest)
    wanted = frozenset(range(campaign.plan.count) if numbers is None else numbers)
    known, unfired = len(wanted & ledgers.known()), len(wanted & ledgers.unfired().keys())
    return Progress(len(wanted), known - unfired, unfired, ledgers.shares(), seconds, max(known - before, 0))


def lease_size(trials: int, slots: int) -> int:
    """Return how many of so many trials a lease has: a few leases for each slot, and at least one where that can be."""
    shared = min(_LARGEST, -(-trials // (slots * _SHARES if slots > 1 else 1)))
    return max(shared, min(_LEAST, max(_FEWEST, -(-trials // slots))))


_NO_TRIAL: Final = -1
"""What a worker was in that was lost between trials, or in one that nobody knows."""


class Driver:
    """Runs what is missing of a campaign on an engine."""

    def __init__(
        self,
        campaign: Campaign,
        engine: Engine,
        tell: Callable[[Progress], None],
        *,
        how: How | None = None,
        stop_at: StopAt | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """`numbers`: of the trials that are wanted, if these are not all."""
        self._numbers = range(campaign.plan.count) if numbers is None else numbers
        self._campaign, self._engine, self._tell, self._stop_at = campaign, engine, tell, stop_at
        self._ledgers = Ledgers(campaign.ledgers, campaign.plan.digest)
        self._work = DetrainWork(campaign.folder, how or How())
        self._leases = 0
        self._in_vain = 0
        self._began, self._before, self._told = time.monotonic(), 0, 0.0

    def run(self) -> Progress:
        """Run it, to its end or to a look at which enough is known.

        Raises HomeInUse if another driver has it, CampaignStopped, StoreError.
        """
        with full_disk.told(self._campaign.folder):
            return self._run()

    def _run(self) -> Progress:
        folder = self._campaign.folder
        try:
            hold(folder, _DRIVER)
        except HomeInUse as error:
            raise HomeInUse(f"this campaign has a driver: {error.what}", "wait for it, or end it") from error
        self._ledgers.set_damaged_aside()
        self._engine.start(self._work)
        known = self._ledgers.known()
        self._began, self._before = time.monotonic(), len(known.intersection(self._numbers))
        found = None
        try:
            while missing := [number for number in self._numbers if number not in known]:
                if self._stop_at is not None:
                    found = self._stop_at.look(self._campaign)
                    if found is not None and found.may_stop:
                        break
                    until = self._stop_at.next(self._campaign.plan.count, missing[0])
                    missing = [number for number in missing if number < until]
                self._round(self._without_crashes(missing))
                known = self._ledgers.known()
        finally:
            self._engine.stop()
        return msgspec.structs.replace(self._look(is_due=True), look=found if missing else None)

    def _round(self, missing: list[int]) -> None:
        """Do what is missing; of what workers have not come to, another round is made."""
        size = lease_size(len(missing), self._engine.slots)
        inside = ordered(self._campaign, missing)
        waiting = [inside[start : start + size] for start in range(0, len(inside), size)]
        running: dict[str, Lease] = {}
        while waiting or running:
            while waiting and len(running) < self._engine.slots:
                lease = self._lease(waiting.pop(0))
                running[lease.identity] = lease
                self._engine.submit(lease)
            for ended in self._engine.events():
                del running[ended.lease.identity]
                rest = self._take(ended)
                if rest:
                    waiting.insert(0, rest)
            self._look()

    def _lease(self, numbers: Sequence[int]) -> Lease:
        self._leases += 1
        return Lease(f"{os.getpid()}-{self._leases}", numbers)

    def _take(self, ended: WorkerEnded) -> list[int]:
        """A worker has ended: return what is left of its lease."""
        known = self._ledgers.known()
        rest = [number for number in ended.lease.numbers if number not in known]
        if ended.status in _OWN_ERRORS:
            what, todo = last_printed(ended.said) or (ended.said or f"a worker has ended with status {ended.status}", "")
            kind = StoreError if ended.status == StoreError.exit_code else CampaignStopped
            raise kind(what, todo or "run the campaign again: it goes on where it was")
        is_noted = bool(ended.status) and self._note_loss(ended)
        # The trial in which it died is on record, and is not run a third time: nothing was in vain.
        self._in_vain = self._in_vain + 1 if len(rest) == len(ended.lease.numbers) and not is_noted else 0
        self._work.forget(ended.lease)
        if self._in_vain > _MOST_IN_VAIN:
            raise CampaignStopped(
                f"{self._in_vain} workers in a row have ended with no trial done, the last by {ended.status}: {ended.said}",
                "see what they say, then run the campaign again",
            )
        return self._without_crashes(rest)

    def _note_loss(self, ended: WorkerEnded) -> bool:
        """Say that a worker was lost; return whether the trial in which it was is known, and noted."""
        number = self._running(ended)
        how = f"signal {signal.Signals(-ended.status).name}" if -ended.status in list(signal.Signals) else f"status {ended.status}"
        messages.say(f"a worker was lost ({how}){f' in trial {number}' if number is not None else ''}: its trials go on elsewhere")
        own = self._ledger(_DRIVER)
        if number is None or number not in ended.lease.numbers:
            own.add_lost(_NO_TRIAL, ended.shard)
            own.close()
            return False
        of_worker = self._ledger(ended.shard)
        own.add_lost(number, ended.shard)
        of_worker.note_running(None)
        own.close()
        of_worker.close()
        return True

    def _running(self, ended: WorkerEnded) -> int | None:
        """Return the trial in which a worker has died: by its mark, or, where it had no time for one, by what the
        program's process has left.
        """
        marked = self._ledgers.running(ended.shard)
        if marked is not None:
            return marked
        left = [plan for home in self._campaign.subject.folder.glob("trial-*") if (plan := left_running(home)) is not None]
        if not left:
            return None
        return next((n for n in ended.lease.numbers if to_loop(self._campaign.plan.trial(n)[1]) in left), None)

    def _without_crashes(self, numbers: list[int]) -> list[int]:
        """Return numbers without those whose workers have died twice: these are crashes."""
        numbers = self._without_told(numbers)
        lost = self._ledgers.lost()
        for number in [number for number in numbers if lost.get(number, 0) >= _MOST_LOST]:
            facts, plan = self._campaign.plan.trial(number)
            ledger = self._ledger(_DRIVER)
            ledger.add(crash_row(facts, plan, has_guard=self._campaign.header.has_guard))
            ledger.close()
        return [number for number in numbers if lost.get(number, 0) < _MOST_LOST]

    def _without_told(self, numbers: list[int]) -> list[int]:
        """Return numbers without those of which is known what comes of them: their rows are written here."""
        plan, has_guard = self._campaign.plan, self._campaign.header.has_guard
        told = {number: known for number in numbers if (known := plan.told(number))}
        if told:
            ledger = self._ledger(_DRIVER)
            for number, known in told.items():
                ledger.add(told_row(*plan.trial(number), known, has_guard=has_guard))
            ledger.close()
        return [number for number in numbers if number not in told]

    def _ledger(self, name: str) -> Ledger:
        return Ledger(self._campaign.ledgers / f"{name}.sqlite", self._campaign.plan.digest)

    def _look(self, *, is_due: bool = False) -> Progress:
        now = time.monotonic()
        if is_due or now - self._told > _LOOKS_S:
            self._told = now
            progress = progress_of(self._campaign, now - self._began, self._before, self._numbers)
            self._tell(progress)
            return progress
        return Progress(self._campaign.plan.count, 0, 0, {})
