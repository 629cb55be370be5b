"""The driver of a campaign: gives the missing trials to workers until none are missing. All state is in the ledgers, so
the driver may be killed at any moment.
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
from detrain.campaign.engine.api import Engine, TrialLease, WorkerEnded
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
"""The most trials of a lease."""
_LEAST: Final = 256
"""The fewest trials of a lease, as each lease starts a process."""
_FEWEST: Final = 16
"""The fewest trials of a lease if slots would otherwise stay empty."""
_SHARES: Final = 3
"""Leases for each slot, so that none is long idle in the end."""
_MOST_LOST: Final = 2
"""If this many workers have died in a trial, the trial is at fault."""
_MOST_IN_VAIN: Final = 6
"""If more workers than these end in a row without a trial done, the campaign stops."""
_OWN_ERRORS: Final = range(64, 100)
"""Exit statuses of detrain's errors."""
_DRIVER: Final = "driver"
_LOOKS_S: Final = 1.0


class CampaignProgress(msgspec.Struct, frozen=True):
    """The progress of a campaign."""

    count: int
    done: int
    """Trials with a row."""
    unfired: int
    shares: dict[str, int]
    """Trials by outcome."""
    seconds: float = 0.0
    """Seconds since the start of the driver."""
    new: int = 0
    """Trials done since the start of the driver."""
    look: Look | None = None
    """The planned look at which the campaign has stopped before its end."""

    @property
    def rate(self) -> float:
        """Trials an hour, by this driver."""
        return self.new / self.seconds * 3600 if self.seconds else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this rate."""
        missing = self.count - self.done - self.unfired
        return missing / self.rate * 3600 if self.rate else None


class StopAt(msgspec.Struct, frozen=True):
    """The precision of the share of harmful trials at which the campaign stops, at a planned look."""

    half_width: float
    """0.01 is ± 1 %."""
    confidence: float

    def look(self, campaign: Campaign) -> Look | None:
        """Return the result of the last planned look before which all trials are done; None if there is none."""
        plan, ledgers = campaign.plan, Ledgers(campaign.ledgers, campaign.plan.digest)
        strata = plan.strata if isinstance(plan, SampledPlan) else None
        rows = [row for row in ledgers.rows() if row.number < plan.count and row.outcome != OUTSIDE]
        no_trials = [number for number in range(plan.count) if plan.told(number) == OUTSIDE]
        is_harmful = lambda row: verdict_of(row.outcome) is Verdict.HARMFUL  # noqa: E731
        return last_look(rows, [*ledgers.unfired(), *no_trials], self._looks(plan.count), is_harmful, self.half_width, strata)

    def next(self, count: int, missing: int) -> int:
        """Return the number below which all trials are done next; `missing`: the first trial that is not done."""
        return next((at for at in self._looks(count).at if at > missing), count)

    def _looks(self, count: int) -> Looks:
        return Looks(count, self.confidence)


def progress_of(
    campaign: Campaign, seconds: float = 0.0, before: int = 0, numbers: Sequence[int] | None = None
) -> CampaignProgress:
    """Return a campaign's progress; `before`: trials that were known at the driver's start, `seconds` ago.

    `numbers`: the wanted trials, if these are not all.
    """
    ledgers = Ledgers(campaign.ledgers, campaign.plan.digest)
    wanted = frozenset(range(campaign.plan.count) if numbers is None else numbers)
    known, unfired = len(wanted & ledgers.known()), len(wanted & ledgers.unfired().keys())
    return CampaignProgress(len(wanted), known - unfired, unfired, ledgers.shares(), seconds, max(known - before, 0))


def lease_size(trials: int, slots: int) -> int:
    """Return how many of `trials` a lease has: a few leases for each slot, and at least one if possible."""
    shared = min(_LARGEST, -(-trials // (slots * _SHARES if slots > 1 else 1)))
    return max(shared, min(_LEAST, max(_FEWEST, -(-trials // slots))))


_NO_TRIAL: Final = -1
"""Stands for the trial if a worker was lost between trials, or in an unknown one."""


class Driver:
    """Runs the missing trials of a campaign on an engine."""

    def __init__(
        self,
        campaign: Campaign,
        engine: Engine,
        tell: Callable[[CampaignProgress], None],
        *,
        how: How | None = None,
        stop_at: StopAt | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """`numbers`: the wanted trials, if these are not all."""
        self._numbers = range(campaign.plan.count) if numbers is None else numbers
        self._campaign, self._engine, self._tell, self._stop_at = campaign, engine, tell, stop_at
        self._ledgers = Ledgers(campaign.ledgers, campaign.plan.digest)
        self._work = DetrainWork(campaign.folder, how or How())
        self._leases = 0
        self._in_vain = 0
        self._began, self._before, self._told = time.monotonic(), 0, 0.0

    def run(self) -> CampaignProgress:
        """Run the campaign to its end, or to a planned look at which its result is precise enough.

        Raises HomeInUse if another driver runs it, CampaignStopped, StoreError.
        """
        with full_disk.told(self._campaign.folder):
            return self._run()

    def _run(self) -> CampaignProgress:
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
        """Give out the missing trials in leases, and wait for the workers; trials left over wait for another round."""
        size = lease_size(len(missing), self._engine.slots)
        inside = ordered(self._campaign, missing)
        waiting = [inside[start : start + size] for start in range(0, len(inside), size)]
        running: dict[str, TrialLease] = {}
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

    def _lease(self, numbers: Sequence[int]) -> TrialLease:
        self._leases += 1
        return TrialLease(f"{os.getpid()}-{self._leases}", numbers)

    def _take(self, ended: WorkerEnded) -> list[int]:
        """Handle the end of a worker: return the numbers that are left of its lease."""
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
        """Report a lost worker; return whether the trial in which it was lost is known, and noted."""
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
        """Return the trial in which a worker died: by its mark, or, if it had no time for one, by the files that the
        program's process left.
        """
        marked = self._ledgers.running(ended.shard)
        if marked is not None:
            return marked
        left = [plan for home in self._campaign.subject.folder.glob("trial-*") if (plan := left_running(home)) is not None]
        if not left:
            return None
        return next((n for n in ended.lease.numbers if to_loop(self._campaign.plan.trial(n)[1]) in left), None)

    def _without_crashes(self, numbers: list[int]) -> list[int]:
        """Return the numbers without trials in which two workers died: rows are written that call these crashes."""
        numbers = self._without_told(numbers)
        lost = self._ledgers.lost()
        for number in [number for number in numbers if lost.get(number, 0) >= _MOST_LOST]:
            facts, plan = self._campaign.plan.trial(number)
            ledger = self._ledger(_DRIVER)
            ledger.add(crash_row(facts, plan, has_guard=self._campaign.header.has_guard))
            ledger.close()
        return [number for number in numbers if lost.get(number, 0) < _MOST_LOST]

    def _without_told(self, numbers: list[int]) -> list[int]:
        """Return the numbers without trials whose results are known beforehand; the rows of these are written here."""
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

    def _look(self, *, is_due: bool = False) -> CampaignProgress:
        now = time.monotonic()
        if is_due or now - self._told > _LOOKS_S:
            self._told = now
            progress = progress_of(self._campaign, now - self._began, self._before, self._numbers)
            self._tell(progress)
            return progress
        return CampaignProgress(self._campaign.plan.count, 0, 0, {})
