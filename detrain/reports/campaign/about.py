"""Facts in a campaign's report beside its trials: the campaign's origin, and the faults of which no trial was made."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from detrain.base.errors import UsageError
from detrain.faults.outcome_classes import Outcome
from detrain.faults.population.plan import SampledPlan
from detrain.faults.population.profile import Profile, memory_totals


class MemoryClass(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of memory of a program."""

    live: float
    """Share of its bits and instants in which a fault is not known to be overwritten before a read: an exact count."""
    derating: float
    """Mean share of the device's memory that it takes; if that is unknown, of the memory between steps."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A share from a publication, to be shown beside ours."""

    outcome: str
    share: float
    source: str
    page: str


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a campaign. Unknown ones are left out of the report."""

    program: str
    arguments: tuple[str, ...] = ()
    name: str = "campaign"
    planned: int = 0
    seed: int = 0
    profile_digest: str = ""
    plan_digest: str = ""
    table_digest: str = ""
    version: str = ""
    options: dict[str, str] = {}
    environment: dict[str, str] = {}
    horizon: int | None = None
    """Steps of a trial; None: to the program's end."""
    rate: float | None = None
    """Trials an hour, all workers together."""
    strata: dict[str, float] = {}
    """The strata's shares of the population, by name."""
    dead: float = 0.0
    outside: float = 0.0
    unfit: float = 0.0
    """Shares of the population of which no trial is made, as the plan counts them."""
    overlaps: bool = False
    """True if groups overlap or modes are mixed, so that the trials belong to no one population."""
    not_fired: int = 0
    redrawn: int = 0
    lost: int = 0
    """Deaths of workers; a trial runs again after the first."""
    replay: str = ""
    """Command that runs a trial again; `{number}` stands for its number."""
    memory: dict[str, MemoryClass] = {}
    published: tuple[Published, ...] = ()


def about_plan(plan: SampledPlan, **known: Any) -> About:
    """Return the facts that a plan holds about its campaign, with the known ones: fields of `About`.

    Options are those that the user chose.
    """
    choice, left = plan.choice, plan.frame.left
    options = {
        "modes": ", ".join(choice.modes),
        "groups": ", ".join(choice.groups) or "each output's own",
        "models": ", ".join(choice.models),
        "population by": choice.rule,
        "strata": " × ".join(choice.strata) or "one",
        **({"sites": choice.site} if choice.site != "*" else {}),
        **({"stage": choice.stage} if choice.stage else {}),
    }
    return About(
        **{
            "program": plan.profile.program,
            "arguments": plan.profile.arguments,
            "planned": plan.count,
            "seed": choice.seed,
            "profile_digest": plan.profile.digest,
            "plan_digest": plan.digest,
            "options": options,
            "horizon": plan.after,
            "strata": plan.strata,
            "dead": left.dead,
            "outside": left.outside,
            "unfit": left.unfit,
            "overlaps": plan.frame.overlaps,
            "memory": memory_of(plan.profile) if "RF" in choice.modes else {},
            **known,
        }
    )


def memory_of(profile: Profile, device_bytes: float | None = None) -> dict[str, MemoryClass]:
    """Return the profile's facts about each kind of memory between steps. `device_bytes`: the device's memory."""
    classes = memory_totals(profile)
    whole = device_bytes or sum(each.bytes for each in classes)
    return {
        each.kind: MemoryClass(live=1 - each.masked / each.bytes, derating=each.bytes / whole) for each in classes if each.bytes
    }


class _PublishedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: list[Published] = []


def read_published(path: Path) -> tuple[Published, ...]:
    """Return the shares in a file (TOML): tables `[[share]]` with outcome, share, source and page.

    Raises UsageError for a file without such tables, an unknown outcome, or a number that is no share. detrain ships no
    such file: users copy the numbers, and their places, from the publications.
    """
    todo = 'write tables such as [[share]] outcome = "masked", share = 0.83, source = "…", page = "7"'
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _PublishedFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} has no published shares: {error}", todo) from error
    for each in found.share:
        if Outcome.named(each.outcome) is None or not 0 <= each.share <= 1 or not each.source or not each.page:
            raise UsageError(f"{str(path)!r}: {each.share} of {each.outcome!r}, from {each.source!r}, page {each.page!r}", todo)
    return tuple(found.share)
