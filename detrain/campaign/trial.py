"""One trial, a fault in a program's training step beside the golden run; and the faults that can be asked for: drawn by
a model, read from a record, or from a CSV of the ISCA 2023 artifact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import xxhash

from detrain.base import messages
from detrain.base.cursor import Address, written
from detrain.base.errors import FaultInvalid, FaultNotFired, SiteUnknown, UsageError, last_printed
from detrain.campaign.subject import Subject
from detrain.campaign.time_limit import limit_of
from detrain.campaign.trial_log import HANG, TrialResult, same_before, same_from
from detrain.faults.drawing import artifact_injection, at_element, draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.isca2023_csv import ArtifactFault, read_fault
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.record import FaultRecord, read_record
from detrain.faults.sites import Site, select, site_named

LEAST_WITH_GUARD: Final = 3
"""The fewest steps that a trial goes on if its loss becomes NaN or infinite, so that the guard can see the fault."""


class Wanted(msgspec.Struct, frozen=True):
    """A fault that was asked for, before the sites of the program are known."""

    model: str
    seed: int | None
    """The seed that draws the fault; None if none does."""
    when: Experiment
    """The experiment that says when: its step, the number of steps, the occurrence in the step."""
    among: Callable[[list[Site]], Injection]
    """Puts the fault at one of the given sites. Raises SiteUnknown or FaultInvalid."""
    record: FaultRecord | None = None
    """The record that the fault was read from, if it was."""


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
    """Return a fault of a model at one of the sites that fit a pattern; `element`: see `at_element`; None: drawn.

    Raises UsageError, or FaultInvalid for an unknown model.
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
        of_site = trial_rng(seed, xxhash.xxh3_64_intdigest(site.name.encode()))  # else all sites of a shape get one fault
        drawn = draw_injection(site, model, worker, of_site)
        return drawn if element is None else at_element(drawn, element)

    return Wanted(model.name, seed, Experiment(log="", at=at, occurrence=occurrence), among)


def recorded_fault(record: FaultRecord, injection: Injection) -> Wanted:
    """Return the fault of a record; it is refused (FaultInvalid) if its site has changed since."""

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
    """Return a fault of the artifact.

    `pattern`: the site to use instead of the CSV's; `takes_nearest`: take the nearest position for one on padding.
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


class Trial(msgspec.Struct, frozen=True):
    """One fault that was done, and the golden run it is compared with."""

    experiment: Experiment
    golden: TrialResult
    done: TrialResult
    is_unarmed_equal: bool = True
    """True if the run with the site in place, before the fault, had the bits of the run without the site."""

    @property
    def injection(self) -> Injection:
        """The fault that was put in."""
        assert self.experiment.injection is not None
        return self.experiment.injection


def try_fault(subject: Subject, wanted: Wanted, experiment: Experiment) -> Trial:
    """Run a fault among the sites of the first step, or of the step that is hit if the first step's do not fit.

    The step that is hit may be of another phase, run other functions, or have a smaller batch: then the first step's
    fault is not found, or not done. `experiment` says when, and for how long; `wanted` gives the fault. Raises
    SiteUnknown, FaultNotFired, FaultInvalid.
    """
    listed = None
    try:
        if not experiment.at[0]:
            listed = wanted.among(subject.sites())
    except SiteUnknown as error:
        messages.say(f"the first step has no such site: {error.what}")
    if listed is not None:
        try:
            return run_trial(subject, msgspec.structs.replace(experiment, injection=listed))
        except FaultNotFired as error:
            reason = error
    found = wanted.among(subject.sites(experiment.at))
    if found == listed:
        raise reason
    return run_trial(subject, msgspec.structs.replace(experiment, injection=found))


def run_trial(subject: Subject, experiment: Experiment) -> Trial:
    """Run one fault in a process of its own, and its golden run if need be. Raises FaultNotFired, FaultInvalid."""
    golden = subject.golden(experiment)
    _require_steps(golden, experiment)
    # No step before the fault could tell whether the site changes bits.
    # This run goes first, as the files that are left shall be the trial's.
    in_place = subject.unarmed(experiment) if experiment.at[2] == 0 else None
    subject.say("the run with the fault")
    done = with_time(subject, experiment, golden)
    is_equal = same_before(golden, done, experiment.at)
    if done.is_unarmed_equal is not None and is_equal is not False:
        is_equal = done.is_unarmed_equal or None  # as the framework has seen in the step itself
    if not is_equal:  # the site in place has changed bits (a fusion that is not made), or no step could tell
        in_place = in_place or subject.unarmed(experiment)
        is_equal = is_equal is None and same_from(golden, in_place, experiment.at)
        golden = golden if is_equal else in_place
    if last_printed(done.error) is not None or (done.fired is None and (done.is_whole or not done.is_armed)):
        raise_unfired(done)  # else the faulty step has ended the process: an outcome
    return Trial(experiment, golden, done, is_equal)


def with_time(subject: Subject, experiment: Experiment, golden: TrialResult) -> TrialResult:
    """Run a trial. If it takes too long, it gets a longer limit where the machine is slower now than it was."""
    done = subject.trial(experiment)
    if done.status != HANG or subject.limit_s is not None or not done.is_armed:
        return done
    limit = limit_of(experiment, subject.unarmed(experiment), None)
    return subject.trial(experiment, limit=limit) if limit.is_longer(limit_of(experiment, golden, None)) else done


def _require_steps(golden: TrialResult, experiment: Experiment) -> None:
    """Raise FaultInvalid unless a run goes on for as long as its fault lasts; a campaign's trial may end before."""
    if experiment.ends_with_loop:
        return
    phase, until = experiment.at[0], experiment.until
    steps = [at for at in golden.by_cursor() if at[2] >= 0 and at[0] == phase and at >= experiment.at]
    count = len([at for at in steps if until is None or at <= until][: experiment.count])
    if 0 < count < experiment.steps:
        raise FaultInvalid(
            f"a fault in {experiment.steps} steps from {written(experiment.at)} on, and the run has {count} of them",
            "choose an earlier step, fewer --steps, or a later --until",
        )


def raise_unfired(done: TrialResult) -> NoReturn:
    """Raise FaultNotFired with the reason why a trial's fault was not done: an error, never an outcome."""
    said = last_printed(done.error)
    if said is not None:
        raise FaultNotFired(*said)
    raise FaultNotFired(
        f"the run ended (status {done.status}) before its fault: {(done.error.splitlines() or ['no message'])[-1]}",
        "run the program with `detrain run` to see what it says",
    )
