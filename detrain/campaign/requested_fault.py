"""The fault that a trial is asked for: drawn by a model, that of a record, or one of the ISCA 2023 artifact's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid, SiteUnknown, UsageError
from detrain.faults.drawing import artifact_injection, draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.isca2023_csv import ArtifactFault, read_fault
from detrain.faults.models import FaultModel, model_named
from detrain.faults.plan import trial_rng
from detrain.faults.record import FaultRecord, read_record
from detrain.faults.sites import Site, select, site_named


class Wanted(Protocol):
    """A fault, before the sites of the program are known."""

    @property
    def name(self) -> str:
        """Its model."""

    @property
    def seed(self) -> int | None:
        """The seed by which it is drawn, if it is."""

    @property
    def when(self) -> Experiment:
        """When it hits: step, number of steps, occurrence in the step."""

    def among(self, sites: list[Site]) -> Injection:
        """Return the fault at its site. Raises SiteUnknown or FaultInvalid."""


@dataclass(frozen=True)
class DrawnFault:
    """By a model, at one of the sites that fit a pattern."""

    model: FaultModel
    pattern: str
    stage: str | None
    worker: int
    seed: int
    when: Experiment

    @property
    def name(self) -> str:
        """Its model."""
        return self.model.name

    def among(self, sites: list[Site]) -> Injection:
        """Return the fault at its site. Raises SiteUnknown or FaultInvalid."""
        rng = trial_rng(self.seed, 0)
        fitting = select(sites, self.pattern, stage=self.stage, operand=self.model.operand.value)
        candidates = [site for site in fitting if site.executions > self.when.occurrence]
        if not candidates:
            most = max(fitting, key=lambda site: site.executions)
            raise SiteUnknown(
                f"there is no run {self.when.occurrence} of {most.name!r} in a step: it has {most.executions}",
                "give a lower --occurrence; the first run is 0",
            )
        return draw_injection(candidates[int(rng.integers(len(candidates)))], self.model, self.worker, rng)


@dataclass(frozen=True)
class RecordedFault:
    """That of a fault record."""

    record: FaultRecord
    injection: Injection

    @property
    def name(self) -> str:
        """Its model."""
        return self.record.model

    @property
    def seed(self) -> int | None:
        """The seed by which it was drawn."""
        return self.record.seed

    @property
    def when(self) -> Experiment:
        """When it hit."""
        return self.record.experiment

    def among(self, sites: list[Site]) -> Injection:
        """Return the fault. Raises SiteUnknown, or FaultInvalid where its site is another one now."""
        site, injection = site_named(sites, self.injection.site, self.injection.signature), self.injection
        target = site.operands.get(injection.operand)
        what = ""
        if target is None or (target.shape, target.dtype) != (injection.shape, injection.dtype):
            what = f"{injection.operand} of {injection.dtype}{list(injection.shape)}"
        elif injection.index not in (None, target.index):
            what = f"{injection.operand} at place {injection.index} of its tensors"
        elif injection.worker >= site.replicas:
            what = f"replica {injection.worker}"
        elif outside := set(injection.array("limited").tolist()) - set(range(site.operands["output"].elements)):
            what = f"output {min(outside)}"
        if what:
            raise FaultInvalid(
                f"{site.name!r} has no {what}, where the fault is", "the record is of another program, or of other arguments"
            )
        return injection


@dataclass(frozen=True)
class PublishedFault:
    """One of the artifact's.

    `pattern`: another site than that of its CSV; `takes_nearest`: for a position on padding.
    """

    fault: ArtifactFault
    pattern: str | None
    takes_nearest: bool
    seed: None = None

    @property
    def name(self) -> str:
        """Its model."""
        return self.fault.fmodel

    @property
    def when(self) -> Experiment:
        """When it hit."""
        return Experiment(log="", at=(0, self.fault.epoch, self.fault.step))

    def among(self, sites: list[Site]) -> Injection:
        """Return the fault at its site. Raises SiteUnknown or FaultInvalid."""
        stage = "forward" if self.fault.target == self.fault.layer else "backward"
        site = select(sites, self.pattern or self.fault.target, stage=stage, operand=self.fault.operand.value)[0]
        return artifact_injection(site, self.fault, takes_nearest=self.takes_nearest)


def read_wanted(path: Path, pattern: str | None, *, takes_nearest: bool) -> RecordedFault | PublishedFault:
    """Return the fault in a file: a record, or a CSV of the artifact. Raises FaultInvalid."""
    if not path.is_file():
        raise FaultInvalid(f"no fault at {str(path)!r}", "give a CSV of the artifact, a record, or --model")
    if path.suffix == ".json":
        record = read_record(path)
        if record.experiment.injection is None:
            raise FaultInvalid(f"{str(path)!r} has no fault in it", "give another record")
        return RecordedFault(record, record.experiment.injection)
    fault = read_fault(path)
    if fault.ignored:
        messages.warn(f"{path}: rows that mean nothing here are left out: {', '.join(fault.ignored)}")
    return PublishedFault(fault, pattern, takes_nearest)


def drawn_fault(
    model: str, pattern: str | None, stage: str | None, worker: int, seed: int, at: Address | None, occurrence: int
) -> DrawnFault:
    """Return a fault that is to be drawn. Raises UsageError, or FaultInvalid for a model that is none."""
    if pattern is None or at is None:
        raise UsageError("--model needs --site and --at", "for example --site 'conv2d*' --at 3:17")
    return DrawnFault(model_named(model), pattern, stage, worker, seed, Experiment(log="", at=at, occurrence=occurrence))
