"""The plan's file: which program, with what, and what trials are drawn from. Any process makes the same plan of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.errors import CampaignStopped
from detrain.campaign.engine.api import CampaignPlan
from detrain.campaign.engine.drawn_plan import DrawnPlan
from detrain.campaign.outcomes import USUAL
from detrain.campaign.random_campaign import RandomCampaign, plan_campaign
from detrain.campaign.subject import DEFAULT_LIMIT_S, Subject
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import environment_difference
from detrain.faults.model_shares import FIDELITY
from detrain.faults.models import PUBLISHED, model_named
from detrain.faults.outcome_classes import Thresholds
from detrain.launcher.program import Program
from detrain.python.process.environment import set_threads

VERSION: Final = 1
_NAME: Final = "plan.json"


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What trials are drawn from, as it was asked for."""

    models: tuple[str, ...] = ()
    """Names of fault models; none: the published ones."""
    shares: str = "uniform"
    pattern: str = "*"
    stage: str | None = None
    epochs: str | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a plan."""

    version: int = VERSION
    program: str
    is_module: bool
    arguments: tuple[str, ...]
    sources: dict[str, str]
    environment: dict[str, str]
    key: str
    """Of all that the golden run depends on, detrain itself included."""
    threads: int
    limit_s: float = DEFAULT_LIMIT_S
    has_guard: bool = False
    seed: int
    count: int
    after: int | None
    thresholds: Thresholds = USUAL
    drawn: Drawn
    digest: str = ""
    """Of the plan."""


class Campaign(msgspec.Struct, frozen=True):
    """A plan that has been read, with the program and its golden run."""

    folder: Path
    header: Header
    subject: Subject
    plan: CampaignPlan
    golden: TrialResult

    @property
    def ledgers(self) -> Path:
        """The folder of the workers' ledgers."""
        return self.folder / "ledger"


def subject_of(header: Header, home: Path) -> Subject:
    """Return the program of a plan, to be run with the plan's number of threads."""
    set_threads(header.threads)
    program = Program.find(header.program, is_module=header.is_module)
    return Subject(program, header.arguments, home, header.limit_s, has_guard=header.has_guard)


def make(header: Header, home: Path, name: str) -> Campaign:
    """Find sites, make the golden run, and write the plan; one that is there is kept if it is the same but longer or
    shorter.
    """
    subject = subject_of(header, home)
    header = msgspec.structs.replace(
        header, key=subject.key, sources=subject.sources(), environment=subject.environment(), program=str(subject.program.shown)
    )
    plan, golden = _plan_of(header, subject)
    header = msgspec.structs.replace(header, digest=plan.digest)
    folder = subject.folder / f"campaign-{name}"
    known = folder / _NAME
    if known.is_file() and _read(known).digest != header.digest:
        raise CampaignStopped(
            f"there is another plan of that name in {str(folder)!r}", "give another --name, or delete that folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f".{_NAME}.{os.getpid()}"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(header), indent=1))
    written.replace(known)
    return Campaign(folder, header, subject, plan, golden)


def find(program: Program, arguments: tuple[str, ...], home: Path, name: str) -> Path:
    """Return the folder of a campaign: the one that is of the program as it is now, else the newest.

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


def load(folder: Path, arguments: tuple[str, ...] | None = None) -> Campaign:
    """Read a plan, and make it anew. Raises CampaignStopped where program, environment or sites are others now."""
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
    if differing:
        raise CampaignStopped(
            f"the plan in {str(folder)!r} is of another program: {'; '.join(differing[:4])}",
            "make a new plan with `detrain campaign plan`, or give the program as it was",
        )
    plan, golden = _plan_of(header, subject)
    if plan.digest != header.digest:
        raise CampaignStopped(f"the plan in {str(folder)!r} comes out as another one", "make a new one under another --name")
    return Campaign(folder, header, subject, plan, golden)


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


def _plan_of(header: Header, subject: Subject) -> tuple[CampaignPlan, TrialResult]:
    drawn = header.drawn
    campaign: RandomCampaign = plan_campaign(
        subject,
        [model_named(name) for name in drawn.models] or list(PUBLISHED.values()),
        seed=header.seed,
        shares=FIDELITY if drawn.shares == "fidelity" else None,
        pattern=drawn.pattern,
        stage=drawn.stage,
        epochs=drawn.epochs,
        after=header.after,
        thresholds=header.thresholds,
    )
    return DrawnPlan(campaign, header.count), campaign.golden
