"""The fault that a trial is asked for: drawn by a model, that of a record, or one of the ISCA 2023 artifact's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid, SiteUnknown, UsageError
from detrain.faults.drawing import artifact_injection, at_element, draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.isca2023_csv import ArtifactFault, read_fault
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.record import FaultRecord, read_record
from detrain.faults.sites import Site, select, site_named


@dataclass(frozen=True)
class Wanted:
    """A fault, before the sites of the program are known."""

    model: str
    seed: int | None
    """By which it is drawn, if it is."""
    when: Experiment
    """Its step, the number of steps, the occurrence in the step."""
    among: Callable[[list[Site]], Injection]
    """Puts it at one of the sites. Raises SiteUnknown or FaultInvalid."""
    record: FaultRecord | None = None
    """Where it is read from."""


def drawn_fault(
    name: str,
    pattern: str | None,
    stage: str | None,
    worker: int,
    seed: int,
    at: Address | None,
    occurrence: int,
    element: str | None = None,
) -> Wanted:
    """Return a fault of a model, at one of the sites that fit a pattern; `element`: see `at_element`, or it is drawn.

    Raises UsageError, or FaultInvalid for a model that is none.
    """
    if pattern is None or at is None:
        raise UsageError("--model needs --site and --at", "for example --site 'conv2d*' --at 3:17")
    model = model_named(name)

    def among(sites: list[Site]) -> Injection:
        rng = trial_rng(seed, 0)
        fitting = select(sites, pattern, stage=stage, operand=model.operand.value)
        candidates = [site for site in fitting if site.executions > occurrence]
        if not candidates:
            most = max(fitting, key=lambda site: site.executions)
            raise SiteUnknown(
                f"there is no run {occurrence} of {most.name!r} in a step: it has {most.executions}",
                "give a lower --occurrence; the first run is 0",
            )
        site = candidates[int(rng.integers(len(candidates)))]
        of_site = trial_rng(seed, xxhash.xxh3_64_intdigest(site.name.encode()))  # or all sites of a shape would have one fault
        drawn = draw_injection(site, model, worker, of_site)
        return drawn if element is None else at_element(drawn, element)

    return Wanted(model.name, seed, Experiment(log="", at=at, occurrence=occurrence), among)


def recorded_fault(record: FaultRecord, injection: Injection) -> Wanted:
    """Return the fault of a record; it is refused (FaultInvalid) where its site is another one now."""

    def among(sites: list[Site]) -> Injection:
        site = site_named(sites, injection.site, injection.signature)
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

    return Wanted(record.model, record.seed, record.experiment, among, record)


def published_fault(fault: ArtifactFault, pattern: str | None, *, takes_nearest: bool) -> Wanted:
    """Return one of the artifact's.

    `pattern`: another site than that of its CSV; `takes_nearest`: for a position on padding.
    """

    def among(sites: list[Site]) -> Injection:
        stage = "forward" if fault.target == fault.layer else "backward"
        site = select(sites, pattern or fault.target, stage=stage, operand=fault.operand.value)[0]
        return artifact_injection(site, fault, takes_nearest=takes_nearest)

    return Wanted(fault.fmodel, None, Experiment(log="", at=(0, fault.epoch, fault.step)), among)


def read_wanted(path: Path, pattern: str | None, *, takes_nearest: bool) -> Wanted:
    """Return the fault in a file: a record, or a CSV of the artifact. Raises FaultInvalid."""
    if not path.is_file():
        raise FaultInvalid(f"no fault at {str(path)!r}", "give a CSV of the artifact, a record, or --model")
    if path.suffix == ".json":
        record = read_record(path)
        if record.experiment.injection is None:
            raise FaultInvalid(f"{str(path)!r} has no fault in it", "give another record")
        if record.experiment.also:
            raise FaultInvalid(f"{str(path)!r} has several faults at once, which replay runs again", "give it to `detrain replay`")
        return recorded_fault(record, record.experiment.injection)
    fault = read_fault(path)
    if fault.ignored:
        messages.warn(f"{path}: rows that mean nothing here are left out: {', '.join(fault.ignored)}")
    return published_fault(fault, pattern, takes_nearest=takes_nearest)
