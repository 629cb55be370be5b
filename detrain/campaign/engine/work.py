"""A worker, a process of its own: does the trials of a lease, and writes their results into its ledger."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from detrain.campaign import full_disk
from detrain.campaign.batch_of_trials import in_order
from detrain.campaign.engine.api import TrialLease
from detrain.campaign.engine.header import Campaign, load
from detrain.campaign.engine.ledger import Ledger
from detrain.campaign.engine.rows import Rows
from detrain.campaign.trials_done import do_trials

_WAITS: Final = ".waits"


class How(msgspec.Struct, frozen=True):
    """Settings that decide how fast trials are done, and nothing else."""

    in_one: bool = True
    """True if many trials share a process."""
    ends_early: bool = True
    """True if trials end once they have come to the golden run's state."""


def do_lease(folder: Path, lease: Path, shard: str, how: How) -> None:
    """Do the trials of a lease, and write their rows into this worker's ledger. Errors raised stop the campaign."""
    campaign = load(folder)
    numbers = msgspec.json.decode(lease.read_bytes(), type=list[int])
    with full_disk.told(folder):
        ledger = Ledger(campaign.ledgers / f"{shard}.sqlite", campaign.plan.digest)
        try:
            _do(campaign, numbers, ledger, how, waits=lease.with_suffix(_WAITS).touch)
        finally:
            ledger.close()


def _do(campaign: Campaign, numbers: list[int], ledger: Ledger, how: How, waits: Callable[[], None]) -> None:
    rows = Rows(campaign.judge, campaign.header.thresholds, campaign.header.has_guard, campaign.spread)
    began = time.monotonic()
    for facts, trial in do_trials(
        campaign.subject,
        campaign.plan,
        numbers,
        campaign.golden,
        in_one=how.in_one,
        with_loop=True,
        ends_early=how.ends_early,
        running=ledger.note_running,
        waits=waits,
    ):
        if isinstance(trial, str):
            ledger.add_unfired(facts.number, trial)
            continue
        row = rows.row(facts, trial.experiment, trial.done, trial.golden)
        alone = round(time.monotonic() - began, 4) if not row.seconds else row.seconds
        ledger.add(msgspec.structs.replace(row, seconds=alone))
        began = time.monotonic()


class DetrainWork(msgspec.Struct, frozen=True):
    """Starts the workers of a campaign: writes lease files that all machines see, and gives each worker's command."""

    folder: Path
    how: How

    def command(self, lease: TrialLease, shard: str) -> list[str]:
        """Write the lease, and return the command of a worker that does it."""
        path = self._path(lease, "json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(lease.numbers))
        options = [*([] if self.how.in_one else ["--engine", "process"]), *([] if self.how.ends_early else ["--no-early-end"])]
        return [sys.executable, "-m", "detrain", "campaign", "work", *options, str(self.folder), str(path), shard]

    def log(self, lease: TrialLease) -> Path:
        """Return the file for a worker's stderr."""
        return self._path(lease, "stderr")

    def waits(self, lease: TrialLease) -> bool:
        """Return whether the worker only waits for trials that take long."""
        return self._path(lease, _WAITS[1:]).is_file()

    def forget(self, lease: TrialLease) -> None:
        """Delete the files of a lease that is over."""
        for suffix in ("json", "stderr", _WAITS[1:]):
            with contextlib.suppress(FileNotFoundError):
                self._path(lease, suffix).unlink()

    def _path(self, lease: TrialLease, suffix: str) -> Path:
        return self.folder / "leases" / f"{lease.identity}.{suffix}"


def ordered(campaign: Campaign, numbers: list[int]) -> list[int]:
    """Return numbers in the order in which they take the least time."""
    plans = {number: campaign.plan.trial(number)[1] for number in numbers}
    return in_order(plans, are_watched=campaign.subject.is_watched)
