"""Many trials, drawn by chance, and their records in a folder: those that are there already are not made again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detrain.base import messages
from detrain.base.errors import FaultInvalid, SiteUnknown, UsageError
from detrain.campaign.drawn_trials import Drawing
from detrain.campaign.outcomes import USUAL
from detrain.campaign.subject import Subject
from detrain.campaign.trial import LEAST_WITH_GUARD, Trial
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import check_same, record_of
from detrain.campaign.trials_done import do_trials
from detrain.faults.experiment import Experiment
from detrain.faults.models import FaultModel
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.record import FaultRecord, is_as_written, read_record, write_record
from detrain.faults.sites import select


@dataclass(frozen=True)
class RandomCampaign:
    """The trials of a drawing, and their records in a folder."""

    subject: Subject
    drawing: Drawing
    golden: TrialResult
    after: int | None
    among: tuple[str, str | None]
    """Pattern and stage of the sites."""
    thresholds: Thresholds
    folder: Path

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
        record, (_, plan) = read_record(path), self.drawing.trial(number, self.after)
        if not is_as_written(path):
            raise FaultInvalid(f"{str(path)!r} was altered since it was written", "delete it to have it made again")
        check_same(record, self.subject, allow_environment=False)
        is_first = record.experiment == plan
        is_of_step = not is_first and record.experiment.at == plan.at
        if not is_first and not (is_of_step and any(record.experiment == again for _, again in self.drawn_there(number, plan))):
            raise FaultInvalid(f"{str(path)!r} is of another campaign: its fault is another", "give another folder with --out")
        if record.thresholds != self.thresholds:
            raise FaultInvalid(f"{str(path)!r} was classified by other thresholds", "give the same --threshold, or another --out")
        return record

    def run(self, numbers: Iterable[int], *, in_one: bool) -> Iterator[tuple[int, FaultRecord]]:
        """Run trials, many in one process or each in one of its own; yields their records once they are in the folder.

        A fault that did not fire is no outcome, and has no record: that is said. Raises FaultInvalid.
        """
        for number, record in self._run(numbers, in_one=in_one):
            write_record(self.path(number), record)
            yield number, record

    def _run(self, numbers: Iterable[int], *, in_one: bool) -> Iterator[tuple[int, FaultRecord]]:
        drawn = {number: self.drawing.trial(number, self.after) for number in numbers}
        again = lambda number, plan: next(self.drawn_there(number, plan), None)  # noqa: E731
        for each in do_trials(self.subject, drawn, self.golden, again, in_one=in_one):
            if each.found is None:
                messages.warn(f"trial {each.number}: {each.unfired}")
                continue
            told = (each.what.name, self.drawing.seed, each.experiment, each.golden, each.found)
            yield each.number, record_of(self.subject, Trial(*told, is_unarmed_equal=each.is_unarmed_equal), self.thresholds)

    def drawn_there(self, number: int, plan: Experiment) -> Iterator[tuple[FaultModel, Experiment]]:
        """Yield a trial once more, drawn among the sites of its own step: its batch may be smaller, its ops others."""
        pattern, stage = self.among
        try:
            sites = select(self.subject.sites(Experiment(log="", at=plan.at)), pattern, stage=stage)
            model, again = self.drawing.trial(number, self.after, (plan.at, sites))
        except (SiteUnknown, FaultInvalid):
            return
        if again != plan:
            yield model, again


def plan_campaign(
    subject: Subject,
    models: Sequence[FaultModel],
    *,
    seed: int = 0,
    shares: dict[str, float] | None = None,
    pattern: str = "*",
    stage: str | None = None,
    epochs: str | None = None,
    after: int | None = None,
    thresholds: Thresholds = USUAL,
    folder: Path | None = None,
) -> RandomCampaign:
    """Return the campaign of a seed: find the sites, make the golden run, and say which steps may be hit.

    `models` are drawn as often as `shares` says (None: each as often), at the sites that fit `pattern` and `stage`, in
    steps of the epochs A to B - 1 of the text `epochs`, A:B. Trials end `after` so many steps. The records go into
    `folder`, else into the program's. Raises UsageError where no step is in the epochs, SiteUnknown, FaultInvalid where
    the program fails without a fault.
    """
    first, last = _epochs(epochs)
    sites = {0: select(subject.sites(), pattern, stage=stage)}
    golden = subject.golden(Experiment(log="", at=(0, first, 0)), has_step=False)
    steps = [cursor for cursor in golden.by_cursor() if cursor[2] >= 0 and first <= cursor[1] < last]
    if not steps:
        raise UsageError(f"--epochs {epochs!r}: the program has no step in them", "give epochs from 0, for example 2:5")
    for phase in sorted({cursor[0] for cursor in steps} - {0}):  # each may train another model
        begin = min(cursor for cursor in golden.by_cursor() if cursor[0] == phase and cursor[2] >= 0)
        try:
            sites[phase] = select(subject.sites(Experiment(log="", at=begin)), pattern, stage=stage)
        except SiteUnknown:
            messages.say(f"no fault is drawn in phase {phase} of training: no site there fits {pattern!r}")
    steps = [cursor for cursor in steps if cursor[0] in sites]
    drawing = Drawing(seed, sites, models, steps, shares, LEAST_WITH_GUARD if subject.has_guard else 0)
    folder = folder or subject.folder / f"random-{seed}"
    return RandomCampaign(subject, drawing, golden, after, (pattern, stage), thresholds, folder)


def _epochs(text: str | None) -> tuple[int, float]:
    if text is None:
        return 0, math.inf
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise UsageError(f"--epochs {text!r} is not a range", "write it as A:B, for example 2:5 for the epochs 2, 3 and 4")
    return int(first or 0), int(last) if last else math.inf
