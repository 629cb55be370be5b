"""Workers that are lost in trials, one after another: no process is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detrain.base.errors import CampaignStopped
from detrain.campaign.engine.api import TrialLease, Work, WorkerEnded
from detrain.campaign.engine.driver import Driver
from detrain.campaign.engine.ledger import Ledger, Ledgers
from tests.campaign.test_stop_at import PLAN, campaign


class Deadly:
    """An engine each of whose workers dies at once: in its first trial, or before it has come to one."""

    slots = 1

    def __init__(self, folder: Path, *, in_trials: bool) -> None:
        self._folder, self._in_trials = folder, in_trials
        self._held: list[TrialLease] = []

    def start(self, work: Work) -> None:
        """There is nothing to start."""

    def submit(self, lease: TrialLease) -> None:
        """Hold it."""
        self._held.append(lease)

    def events(self) -> Iterator[WorkerEnded]:
        """Have its worker die."""
        lease = self._held.pop()
        ledger = Ledger(self._folder / "ledger" / "slot-0.sqlite", PLAN.digest)
        if self._in_trials:
            ledger.note_running(lease.numbers[0])
        ledger.close()
        yield WorkerEnded(lease, "slot-0", -9)

    def stop(self) -> None:
        """There is nothing to stop."""


def test_trials_that_kill_their_workers_twice_are_crashes_however_many_lie_side_by_side(tmp_path: Path) -> None:
    numbers = list(range(12))

    progress = Driver(campaign(tmp_path), Deadly(tmp_path, in_trials=True), lambda _progress: None, numbers=numbers).run()

    rows = Ledgers(tmp_path / "ledger", PLAN.digest).rows()
    assert (progress.done, {row.end for row in rows}) == (12, {"crash: its worker died twice"})


def test_workers_that_die_before_any_trial_stop_the_campaign(tmp_path: Path) -> None:
    driver = Driver(campaign(tmp_path), Deadly(tmp_path, in_trials=False), lambda _progress: None, numbers=list(range(12)))

    with pytest.raises(CampaignStopped, match="7 workers in a row have ended with no trial done"):
        driver.run()
    assert sum(Ledgers(tmp_path / "ledger", PLAN.digest).lost().values()) == 7, "the report has each"
