"""The file of a sampled plan: what its trials are a function of, but for the profile, which it knows by its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from detrain.base.errors import FaultInvalid
from detrain.faults.population.frame import Choice
from detrain.faults.population.plan import SampledPlan
from detrain.faults.population.profile import Profile

VERSION: Final = 1


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, as its file has it (JSON)."""

    version: int = VERSION
    profile: str
    """Digest of the profile."""
    choice: Choice
    count: int
    allocation: tuple[tuple[str, float], ...]
    after: int | None = None
    least: int = 0
    digest: str
    """Of the plan."""


def plan_file(plan: SampledPlan) -> PlanFile:
    """Return what a plan's file says."""
    return PlanFile(
        profile=plan.profile.digest,
        choice=plan.choice,
        count=plan.count,
        allocation=plan.allocation,
        after=plan.after,
        least=plan.least,
        digest=plan.digest,
    )


def plan_of(found: PlanFile, profile: Profile) -> SampledPlan:
    """Return the plan of a file, against its profile. Raises FaultInvalid for another profile, version, or digest."""
    if found.version != VERSION:
        raise FaultInvalid(f"the plan has version {found.version}, this detrain reads {VERSION}", "plan the campaign anew")
    if found.profile != profile.digest:
        raise FaultInvalid(
            f"the plan is of profile {found.profile}, got {profile.digest}",
            "give the profile that it was made with; of another program or other arguments, plan a campaign anew",
        )
    plan = SampledPlan(profile, found.choice, found.count, found.allocation, found.after, found.least)
    if plan.digest != found.digest or set(plan.strata) != {name for name, _ in found.allocation}:
        raise FaultInvalid(f"the plan was altered: its digest is {plan.digest}, said is {found.digest}", "plan the campaign anew")
    return plan


def write_plan(path: Path, plan: SampledPlan) -> None:
    """Write a plan."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(plan_file(plan)), indent=1) + b"\n")
    temporary.replace(path)


def read_plan(path: Path, profile: Profile) -> SampledPlan:
    """Return a plan from its file. Raises FaultInvalid for what is none, or does not fit the profile."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=PlanFile)
    except (OSError, msgspec.DecodeError) as error:
        raise FaultInvalid(f"{str(path)!r} is no plan: {error}", "plan the campaign anew") from error
    return plan_of(found, profile)
