"""A campaign that stops at a planned look: its workers are made here, and no process is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from detrain.campaign.engine.api import TrialLease, Work, WorkerEnded
from detrain.campaign.engine.driver import CampaignProgress, Driver, StopAt
from detrain.campaign.engine.header import Campaign
from detrain.campaign.engine.ledger import Ledger, Ledgers
from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.estimates import Sample
from tests.population import made_rows

COUNT = 960
ROWS = made_rows.rows(COUNT)
PLAN = made_rows.plan(COUNT)
LOOKS = (30, 60, 120, 240, 480, 960)


class Made:
    """An engine whose workers have done their leases at once; the last that was given is over first."""

    slots = 2

    def __init__(self, folder: Path, rows: Sequence[TrialRow]) -> None:
        self._folder, self._rows = folder, rows
        self._held: list[TrialLease] = []
        self.most: list[int] = []
        """The highest number of each lease."""

    def start(self, work: Work) -> None:
        """There is nothing to start."""

    def submit(self, lease: TrialLease) -> None:
        """Hold it."""
        self._held.append(lease)
        self.most.append(max(lease.numbers))

    def events(self) -> Iterator[WorkerEnded]:
        """Do the last."""
        lease = self._held.pop()
        ledger = Ledger(self._folder / "ledger" / f"slot-{len(self._held)}.sqlite", PLAN.digest)
        for number in lease.numbers:
            ledger.add(self._rows[number])
        ledger.close()
        yield WorkerEnded(lease, f"slot-{len(self._held)}", 0)

    def stop(self) -> None:
        """There is nothing to stop."""


def campaign(folder: Path) -> Campaign:
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    header, subject = SimpleNamespace(has_guard=True), SimpleNamespace(folder=folder, is_watched=True)
    return Campaign(folder, cast(Any, header), cast(Any, subject), PLAN, cast(Any, None))


def run(folder: Path, half_width: float | None) -> tuple[CampaignProgress, Made]:
    engine = Made(folder, ROWS)
    stop_at = StopAt(half_width, 0.95) if half_width is not None else None
    return Driver(campaign(folder), engine, lambda _progress: None, stop_at=stop_at).run(), engine


def half_width_at(trials: int) -> float:
    """Of the interval at a look, by its own formula: its part of the error is by the trials that it adds."""
    before = max((at for at in LOOKS if at < trials), default=0)
    error = 0.05 * (trials - before) / COUNT
    rows = ROWS[:trials]
    sample = Sample(np.array([row.weight for row in rows]), np.array([row.stratum for row in rows]), PLAN.strata)
    found = sample.estimate(np.array([row.outcome != "masked" for row in rows]), None, 1 - error)
    return (found.high - found.low) / 2


@pytest.mark.parametrize("at", [120, 240, 480])
def test_it_stops_at_the_first_look_that_knows_enough(at: int, tmp_path: Path) -> None:
    """Just as much as is known there is asked for; the look before knows less."""
    wanted = half_width_at(at) * 1.0001
    before = LOOKS[LOOKS.index(at) - 1]
    assert half_width_at(before) > wanted

    progress, engine = run(tmp_path, wanted)

    assert progress.look is not None
    assert (progress.look.trials, progress.done, max(engine.most)) == (at, at, at - 1)


def test_it_goes_to_its_end_where_no_look_knows_enough(tmp_path: Path) -> None:
    progress, engine = run(tmp_path, 0.001)

    assert (progress.look, progress.done) == (None, COUNT)
    assert sorted({next(at for at in LOOKS if at > most) for most in engine.most}) == list(LOOKS)  # no look is passed over


def test_trials_behind_the_look_do_not_matter(tmp_path: Path) -> None:
    """Another driver has done some of them, and they are other than those before."""
    folder = tmp_path / "with"
    shard = Ledger((campaign(folder).ledgers) / "other.sqlite", PLAN.digest)
    for row in ROWS[300:420]:
        shard.add(row)
    shard.close()
    wanted = half_width_at(240) * 1.0001

    with_more, _ = run(folder, wanted)
    alone, _ = run(tmp_path / "alone", wanted)

    assert with_more.look == alone.look
    assert (with_more.done, alone.done) == (360, 240)


def test_what_has_stopped_goes_on_without_the_option_and_is_the_same_table(tmp_path: Path) -> None:
    run(tmp_path / "stopped", half_width_at(120) * 1.0001)
    again, _ = run(tmp_path / "stopped", None)
    run(tmp_path / "whole", None)

    assert again.done == COUNT
    assert (
        Ledgers(tmp_path / "stopped" / "ledger", PLAN.digest).digest()
        == Ledgers(tmp_path / "whole" / "ledger", PLAN.digest).digest()
    )
