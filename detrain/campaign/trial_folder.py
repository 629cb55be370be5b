"""The trials of a plan as records in a folder: those that are there already are not made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from detrain.base import messages
from detrain.base.errors import FaultInvalid
from detrain.campaign.subject import Subject
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import check_same, record_of
from detrain.campaign.trials_done import do_trials
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.population.facts import CampaignPlan
from detrain.faults.record import FaultRecord, is_as_written, read_record, write_record


@dataclass(frozen=True)
class TrialFolder:
    """Records of the trials that a plan draws by a seed."""

    folder: Path
    subject: Subject
    plan: CampaignPlan
    seed: int
    thresholds: Thresholds

    def path(self, number: int) -> Path:
        """Return the file of a trial's record."""
        return self.folder / f"trial-{number:06d}.json"

    def known(self, number: int) -> FaultRecord | None:
        """Return the record of a trial that has been run already.

        Raises FaultInvalid if it is of another campaign, AnotherProgram or EnvironmentChanged if of another program or
        elsewhere.
        """
        path = self.path(number)
        if not path.is_file():
            return None
        record, first = read_record(path), self.plan.trial(number)[1]
        if not is_as_written(path):
            raise FaultInvalid(f"{str(path)!r} was altered since it was written", "delete it to have it made again")
        check_same(record, self.subject, allow_environment=False)
        is_of_step = record.experiment.at == first.at
        found = msgspec.structs.replace(record.experiment, is_inference=False)  # a plan does not say that it is
        again = self.plan.again(number, first) if is_of_step and found != first else None
        is_as_run = record.experiment.is_inference == self.subject.is_inference
        if not is_as_run or found not in (first, again and again[1]):
            raise FaultInvalid(f"{str(path)!r} is of another campaign: its fault is another", "give another folder with --out")
        if record.thresholds != self.thresholds:
            raise FaultInvalid(f"{str(path)!r} was classified by other thresholds", "give the same --threshold, or another --out")
        return record

    def run(self, numbers: Iterable[int], golden: TrialResult, *, in_one: bool) -> Iterator[tuple[int, FaultRecord]]:
        """Run trials, many in one process or each in one of its own; yields their records once they are in the folder.

        A fault that did not fire is no outcome, and has no record: that is said. Raises FaultInvalid.
        """
        for facts, trial in do_trials(self.subject, self.plan, numbers, golden, in_one=in_one):
            if isinstance(trial, str):
                messages.warn(f"trial {facts.number}: {trial}")
                continue
            record = record_of(self.subject, trial, facts.model, self.seed, self.thresholds)
            write_record(self.path(facts.number), record)
            yield facts.number, record
