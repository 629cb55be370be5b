"""The file of a plan: the program, its settings, and the source of its trials. Any process makes the same plan from it.

In a campaign of two phases all trials run a few steps, and some of them run to the horizon, in a second campaign. The
second plan is the first one with another horizon: the same numbers are the same faults. The choice of its trials is a
pure function of the first campaign's rows, so it is the same for any workers, and whichever of them were killed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from detrain.base import messages
from detrain.base.errors import CampaignStopped, FaultInvalid
from detrain.campaign import full_disk
from detrain.campaign.engine.ledger import Ledgers
from detrain.campaign.judging.check import is_function
from detrain.campaign.judging.judge import Judge
from detrain.campaign.judging.spread import Spread
from detrain.campaign.outcomes import judging_accuracies
from detrain.campaign.planning.drawn_plan import Drawn, drawn_plan
from detrain.campaign.planning.profiling import profile_program
from detrain.campaign.subject import Subject
from detrain.campaign.trial import LEAST_WITH_GUARD
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import environment_difference
from detrain.faults.exchange.kernels import nvbitfi_kernels, sassifi_kernels
from detrain.faults.exchange.listed import ListLine
from detrain.faults.exchange.lists import ListName, plan_of_lines
from detrain.faults.outcome_classes import USUAL, Thresholds, Verdict, verdict_of
from detrain.faults.population.facts import ONCE, CampaignPlan, Coming
from detrain.faults.population.frame import Selection
from detrain.faults.population.plan import SampledPlan, sampled_plan
from detrain.faults.population.profile import Profile, read_profile, write_profile
from detrain.faults.population.stopping import second_phase, shares_by_pilot
from detrain.launcher.program import Program
from detrain.python.process.environment import set_threads

VERSION: Final = 4
_NAME: Final = "plan.json"
_PROFILE: Final = "profile.json"

_PREFIX = "second"


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which trials are drawn from a profile."""

    choice: Selection
    profile: str = ""
    """Digest of the profile."""
    allocation: tuple[tuple[str, float], ...] = ()
    """Share of the trials by stratum; empty: not settled yet, so the population's, or the shares that a pilot gives."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A list of injections made by another tool."""

    name: ListName
    tool: Literal["sassifi", "nvbitfi"]
    lines: tuple[ListLine, ...]


class TwoPhase(msgspec.Struct, frozen=True, kw_only=True):
    """All trials run a few steps; some of them run on to the horizon."""

    first: int
    """Steps of the first phase."""
    trials: int
    """Number of trials of the second phase."""
    horizon: int | None
    """Steps of the second phase; None: to the program's end."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a plan's file."""

    version: int = VERSION
    program: str
    is_module: bool
    arguments: tuple[str, ...]
    sources: dict[str, str]
    environment: dict[str, str]
    key: str
    """Digest of all that the golden run depends on, detrain itself included."""
    threads: int
    limit_s: float | None = None
    has_guard: bool = False
    is_inference: bool = False
    has_ranges: bool = False
    """True if trials clip the outputs of modules to their ranges in the golden run."""
    seed: int
    count: int
    after: int | None
    thresholds: Thresholds = USUAL
    check: str = ""
    """The user's check of the program's end: a command, or module:function."""
    ignored: tuple[str, ...] = ()
    """Patterns of lines of the program's output that are not compared."""
    coming: Coming = ONCE
    spread: int = 0
    """Golden runs of other seeds that trials are judged by; 0: none, so by the program's accuracy."""
    spread_with: str = ""
    """Words for the program's command line that set another seed, with {} for the seed."""
    metric: str = ""
    """Pattern of the number in the program's output by which trials are compared, or module:function; empty: the
    loss."""
    drawn: Drawn | None = None
    """Settings of a plan that draws as `detrain random` does."""
    sampled: Sampled | None = None
    """Settings of a plan that draws from a profile."""
    listing: Listing | None = None
    """Another tool's list, in place of drawing."""
    two_phase: TwoPhase | None = None
    """Settings of both phases, in the plan of a first phase."""
    digest: str = ""
    """Digest of the plan."""


class Campaign(msgspec.Struct, frozen=True):
    """A plan that was read, with its program and golden run."""

    folder: Path
    header: Header
    subject: Subject
    plan: CampaignPlan
    judge: Judge
    spread: Spread | None = None

    @property
    def golden(self) -> TrialResult:
        """The golden run."""
        return self.judge.golden

    @property
    def ledgers(self) -> Path:
        """The folder of the workers' ledgers."""
        return self.folder / "ledger"


def subject_of(header: Header, home: Path) -> Subject:
    """Return the program of a plan, to be run with the plan's number of threads."""
    set_threads(header.threads)
    program = Program.find(header.program, is_module=header.is_module)
    metric = header.metric if is_function(header.metric) else ""
    subject = Subject(
        program,
        header.arguments,
        home,
        header.limit_s,
        has_guard=header.has_guard,
        is_inference=header.is_inference,
        check=header.check,
        metric=metric,
    )
    subject.has_ranges = header.has_ranges
    return subject


def make(header: Header, home: Path, name: str, *, prefix: str = "campaign") -> Campaign:
    """Find the sites, make the golden run, and write the plan into the folder `prefix`-`name`; an existing plan is
    replaced if only its length differs.

    Raises CampaignStopped for another plan of that name, StoreError if the disk is full.
    """
    with full_disk.told(home):
        return _made(header, home, f"{prefix}-{name}")


def _made(header: Header, home: Path, name: str) -> Campaign:
    subject = subject_of(header, home)
    header = msgspec.structs.replace(
        header, key=subject.key, sources=subject.sources(), environment=subject.environment(), program=str(subject.program.shown)
    )
    folder = subject.folder / name
    known = folder / _NAME
    if header.sampled is not None and known.is_file():
        header = msgspec.structs.replace(header, sampled=_shared_out_as(_read(known), header.sampled))
    plan, golden = _plan_of(header, subject)
    header = msgspec.structs.replace(header, digest=plan.digest)
    if header.sampled is not None and isinstance(plan, SampledPlan):
        sampled = msgspec.structs.replace(header.sampled, profile=plan.profile.digest, allocation=plan.allocation)
        header = msgspec.structs.replace(header, sampled=sampled)
    if known.is_file() and not _is_same(_read(known), header):
        raise CampaignStopped(
            f"there is another plan of that name in {str(folder)!r}", "give another --name, or delete that folder"
        )
    judge = Judge(golden, subject.golden_again(golden), header.ignored)
    spread = _spread_of(header, subject, golden)
    if spread is None and not judging_accuracies(golden):
        messages.say("no step has an accuracy to judge by: only losses that are no number count; --spread 8 judges by the loss")
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f".{_NAME}.{os.getpid()}"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(header), indent=1))
    written.replace(known)
    return Campaign(folder, header, subject, plan, judge, spread)


def find(program: Program, arguments: tuple[str, ...], home: Path, name: str) -> Path:
    """Return the folder of a campaign: the one of the program as it is now, else the newest.

    Raises CampaignStopped if there is none.
    """
    found = sorted(home.absolute().glob(f"{program.name}.faults/*/campaign-{name}/{_NAME}"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise CampaignStopped(f"{program.name} has no campaign {name!r}", f"make one: detrain campaign plan {program.shown}")
    for file in reversed(found):
        header = _read(file)
        if header.arguments == arguments and header.key == subject_of(header, home).key:
            return file.parent
    return found[-1].parent


def load(folder: Path, arguments: tuple[str, ...] | None = None, *, must_be_as_now: bool = True) -> Campaign:
    """Read a plan, and make its trials anew. Raises CampaignStopped if program, environment or sites have changed;
    not if `must_be_as_now` is false: then the results in the folder can be read, but nothing can be run.
    """
    header = _read(folder / _NAME)
    subject = subject_of(header, folder.parent.parent.parent)
    differing = []
    if arguments is not None and arguments != header.arguments:
        differing.append(f"arguments were {list(header.arguments)}, are {list(arguments)}")
    now = subject.sources()
    differing += [f"source {name}" for name in sorted({*now, *header.sources}) if now.get(name) != header.sources.get(name)]
    differing += environment_difference(header.environment, subject.environment())
    if not differing and subject.key != header.key:
        differing.append("detrain itself")
    if differing and not must_be_as_now:
        messages.say(f"the program is another one now than that of the plan: {'; '.join(differing[:4])}")
        subject.is_of_past, subject.folder = True, folder.parent
    elif differing:
        raise CampaignStopped(
            f"the plan in {str(folder)!r} is of another program: {'; '.join(differing[:4])}",
            "make a new plan with `detrain campaign plan`, or give the program as it was",
        )
    plan, golden = _plan_of(header, subject)
    if plan.digest != header.digest:
        raise CampaignStopped(f"the plan in {str(folder)!r} comes out as another one", "make a new one under another --name")
    judge = Judge(golden, subject.golden_again(golden), header.ignored)
    return Campaign(folder, header, subject, plan, judge, _spread_of(header, subject, golden))


def _spread_of(header: Header, subject: Subject, golden: TrialResult) -> Spread | None:
    """Return the golden runs of other seeds, made if need be. Raises FaultInvalid if one is like the golden run."""
    if not header.spread:
        return None
    runs: list[TrialResult] = []
    known = golden.by_cursor()
    for number in range(1, header.spread + 1):
        runs.append(subject.golden_with_seed(number, golden, header.spread_with))
        if all(known.get(at, step).series == step.series for at, step in runs[-1].by_cursor().items()):
            raise FaultInvalid(
                "a golden run with another seed says the same as the first: nothing in it depends on that seed",
                "give the words that set the program's seed, with {} for the seed: --spread-with '--seed {}'",
            )
    again = subject.golden_again(golden) if subject.metric else None
    return Spread(runs, header.metric, again.measured if again is not None else None)


def _read(path: Path) -> Header:
    try:
        header = msgspec.json.decode(path.read_bytes(), type=Header)
    except msgspec.DecodeError as error:
        raise CampaignStopped(f"{str(path)!r} is no plan: {error}", "make a new one with `detrain campaign plan`") from error
    if header.version != VERSION:
        raise CampaignStopped(
            f"{str(path)!r} is a plan of version {header.version}, expected {VERSION}", "run it with the detrain that made it"
        )
    return header


def _is_same(known: Header, header: Header) -> bool:
    """Return whether two plans draw the same trials and judge them alike."""
    parts = ("digest", "has_ranges", "check", "ignored", "thresholds", "spread", "spread_with", "metric")
    is_as_long = (known.two_phase is None) == (header.two_phase is None)
    return is_as_long and all(getattr(known, part) == getattr(header, part) for part in parts)


def _shared_out_as(known: Header, wanted: Sampled) -> Sampled:
    """Return the wanted settings with the existing plan's shares of the strata, if both plans make the same choice."""
    if known.sampled is None or known.sampled.choice != wanted.choice or wanted.allocation:
        return wanted
    return msgspec.structs.replace(wanted, allocation=known.sampled.allocation)


def shared_out_by(header: Header, sampled: Sampled, home: Path, pilot: str) -> Sampled:
    """Return the wanted settings, with the trials shared out by the results of a pilot, another campaign of the
    program.

    The shares are those that tell most about the share of harmful trials. Raises CampaignStopped for a pilot without
    strata, FaultInvalid for one with other strata.
    """
    subject = subject_of(header, home)
    found = load(subject.folder / f"campaign-{pilot}")
    if not isinstance(found.plan, SampledPlan):
        raise CampaignStopped(f"the campaign {pilot!r} has no strata", "plan it in one of the modes IOV, IOA and RF")
    rows = list(Ledgers(found.ledgers, found.plan.digest).rows())
    shares = shares_by_pilot(found.plan.strata, rows, lambda row: verdict_of(row.outcome) is Verdict.HARMFUL)
    plan = sampled_plan(found.plan.profile, sampled.choice, header.count, after=header.after, shares=shares)
    return msgspec.structs.replace(sampled, allocation=plan.allocation)


def profile_for(subject: Subject) -> Profile:
    """Return the profile of a program; the profile, and its golden run, are made if need be."""
    file = subject.folder / _PROFILE
    if file.is_file():
        return read_profile(file)
    profile = profile_program(subject)
    write_profile(file, profile)
    return profile


def _plan_of(header: Header, subject: Subject) -> tuple[CampaignPlan, TrialResult]:
    plan, golden = _plan_without_ranges(header, subject)
    if header.has_ranges and not golden.ranges:
        raise _no_ranges("the program calls none, or has them compiled")
    return plan, golden


def _no_ranges(why: str) -> FaultInvalid:
    return FaultInvalid(f"--ranges clips what modules of PyTorch give: {why}", "leave out --ranges, or have no module compiled")


def _plan_without_ranges(header: Header, subject: Subject) -> tuple[CampaignPlan, TrialResult]:
    if header.has_ranges:
        subject.sites()
        if not subject.is_watched:
            raise _no_ranges("this program is of another framework")
    least = LEAST_WITH_GUARD if header.has_guard else 0
    if header.listing is not None:
        profile, listing = profile_for(subject), header.listing
        is_sassifi = listing.tool == "sassifi"
        listed = plan_of_lines(
            listing.name,
            listing.lines,
            (sassifi_kernels if is_sassifi else nvbitfi_kernels)(profile),
            profile.digest,
            group=listing.name.group if is_sassifi else None,
            after=header.after,
            least=least,
            path=listing.name.list_name,
        )
        return listed, subject.whole()
    if header.sampled is not None:
        if header.sampled.choice.modes != ("RF",):
            subject.require_apart(header.coming)
        profile, sampled = profile_for(subject), header.sampled
        plan = sampled_plan(profile, sampled.choice, header.count, after=header.after, least=least, coming=header.coming)
        if sampled.allocation:
            plan = msgspec.structs.replace(plan, allocation=sampled.allocation)
        return plan, subject.whole()
    drawn = header.drawn or Drawn()
    return drawn_plan(subject, drawn, seed=header.seed, count=header.count, after=header.after, coming=header.coming)


def make_both(header: Header, home: Path, name: str) -> Campaign:
    """Write the plans of both phases; return the first. Raises CampaignStopped, StoreError."""
    assert header.two_phase is not None
    make(msgspec.structs.replace(header, two_phase=None), home, name, prefix=_PREFIX)
    return make(msgspec.structs.replace(header, after=header.two_phase.first), home, name)


def second_of(campaign: Campaign) -> Campaign | None:
    """Return the campaign of the second phase; None if there is none. Raises CampaignStopped."""
    if campaign.header.two_phase is None:
        return None
    folder = campaign.folder.with_name(campaign.folder.name.replace("campaign", _PREFIX, 1))
    return load(folder, must_be_as_now=not campaign.subject.is_of_past)


def numbers_of_second(campaign: Campaign) -> list[int] | None:
    """Return the trials of the second phase; None until the first phase is complete."""
    header, ledgers = campaign.header, Ledgers(campaign.ledgers, campaign.plan.digest)
    assert header.two_phase is not None
    if not set(range(campaign.plan.count)) <= ledgers.known():
        return None
    rows = [row for row in ledgers.rows() if row.number < campaign.plan.count]
    return second_phase(rows, header.two_phase.trials, header.seed)
