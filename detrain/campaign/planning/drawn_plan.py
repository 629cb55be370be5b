"""The plan of `detrain random`, and of campaigns in mode ISCA: all sites are equally likely, whatever their sizes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid, SiteUnknown, UsageError
from detrain.campaign.planning.profiling import idle_steps
from detrain.campaign.subject import Subject
from detrain.campaign.trial import LEAST_WITH_GUARD
from detrain.campaign.trial_log import TrialResult
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.models import PUBLISHED, FaultModel, model_named
from detrain.faults.plan import trial_rng
from detrain.faults.population.facts import ONCE, Coming, Planned, Told, planned
from detrain.faults.population.groups import own_group, use_of
from detrain.faults.sites import Site, op_and_output, select

_DRAWS: Final = 100
"""The most draws of a trial, in case its model fits no site (all tensors are too small)."""

FIDELITY: Final = {
    "input": 0.018,
    "weight": 0.035,
    "input16": 0.117,
    "weight16": 0.156,
    "neuron": 0.272,
    "local control": 0.041,
    "global control": 0.081,
}
"""FIdelity's shares, by the fault's place in the accelerator. They come to .72 and are used as ratios."""
GROUPS: Final = {
    "INPUT": "input",
    "WT": "weight",
    "INPUT_16": "input16",
    "WT_16": "weight16",
    "RBFLIP": "neuron",
    **{name: "global control" for name in PUBLISHED if name.endswith("_GLB")},
}
"""Our grouping of the published models; models that are not listed are local control."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The source of drawn trials, as the user asked for it."""

    models: tuple[str, ...] = ()
    """Names of fault models; empty: the published ones."""
    shares: str = "uniform"
    pattern: str = "*"
    stage: str | None = None
    epochs: str | None = None


class DrawnPlan(msgspec.Struct, frozen=True, dict=True):
    """Trials drawn at random. Each is a pure function of this plan and its number."""

    seed: int
    count: int
    models: Sequence[FaultModel]
    sites: Mapping[int, Sequence[Site]]
    """The sites of each phase."""
    steps: Sequence[Address]
    sites_of: Callable[[Address], Sequence[Site]]
    """Lists the sites of one step. Raises SiteUnknown, FaultInvalid."""
    shares: dict[str, float] | None = None
    after: int | None = None
    least: int = 0
    """The fewest steps that a trial goes on if its loss becomes NaN or infinite."""
    coming: Coming = ONCE

    @cached_property
    def digest(self) -> str:
        """Digest of all that decides about trials (xxh3-128, hex)."""
        sites = {str(phase): list(sites) for phase, sites in self.sites.items()}
        names = [model.name for model in self.models]
        parts = self.seed, sites, names, list(self.steps), self.shares, self.least, self.after, self.coming
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))

    def trial(self, number: int) -> Planned:
        """Return a trial, with step, model, site, replica, positions and values. Raises FaultInvalid."""
        return self._drawn(number, self.sites)

    def told(self, number: int) -> Told:
        """Return an empty text: no trial's result is known beforehand."""
        return ""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return a trial drawn among the sites of its own step, whose batch may be smaller and whose ops may differ.

        All else is drawn as before. None if that gives no fault, or the same one.
        """
        try:
            found = self._drawn(number, self.sites_of(first.at), first.at)
        except (SiteUnknown, FaultInvalid):
            return None
        return found if found[1] != first else None

    def _drawn(self, number: int, among: Mapping[int, Sequence[Site]] | Sequence[Site], there: Address | None = None) -> Planned:
        rng = trial_rng(self.seed, number)
        for _ in range(_DRAWS):
            at = self.steps[int(rng.integers(len(self.steps)))]
            model = draw_model(self.models, rng, self.shares)
            sites = among[at[0]] if isinstance(among, Mapping) else among
            fitting = [site for site in sites if model.operand.value in site.operands]
            is_apart = self.coming.among == "step"
            found = _at_one_of(fitting, model, rng, 1 if is_apart else self.coming.at_once)
            if found is None:
                continue
            site, injection, occurrence = found
            also = self._others(site, sites, rng) if is_apart else ()
            is_op = site.stage != "memory"
            return planned(
                number,
                site,
                injection,
                there or at,
                occurrence,
                model=model.name,
                after=self.after,
                least=self.least,
                group=int(own_group(site.op, injection.dtype, use_of(site))) if is_op else -1,
                coming=self.coming,
                seed=self.seed,
                also=also,
            )
        raise FaultInvalid(
            f"no fault of {', '.join(model.name for model in self.models)} fits any site", "choose other --models, or a --site"
        )

    def _others(self, first: Site, sites: Sequence[Site], rng: np.random.Generator) -> list[tuple[Injection, int]]:
        """Draw the faults that come with a first one, in other ops of the step. Raises FaultInvalid if too few fit."""
        taken = {op_and_output(first.name)[0]}
        also: list[tuple[Injection, int]] = []
        for _ in range(_DRAWS * self.coming.at_once):
            if len(also) + 1 == self.coming.at_once:
                return also
            model = draw_model(self.models, rng, self.shares)
            free = [site for site in sites if op_and_output(site.name)[0] not in taken and model.operand.value in site.operands]
            found = _at_one_of(free, model, rng, 1)
            if found is not None:
                taken.add(op_and_output(found[0].name)[0])
                also.append(found[1:])
        raise FaultInvalid(
            f"{self.coming.at_once} faults in tensors of their own do not fit a step: {len(also) + 1} do",
            "give a smaller --at-once, or choose more sites",
        )


def _at_one_of(
    sites: Sequence[Site], model: FaultModel, rng: np.random.Generator, at_once: int
) -> tuple[Site, Injection, int] | None:
    """Return a fault of a model, at one of the sites that it fits (all equally likely), with the occurrence; or None.

    So models that do not fit some of the sites are drawn as often as the others.
    """
    for index in rng.permutation(len(sites)):
        site = sites[int(index)]
        worker = int(rng.integers(site.replicas))
        occurrence = int(rng.integers(site.executions)) if site.executions > 1 else 0
        with contextlib.suppress(FaultInvalid):
            return site, draw_injection(site, model, worker, rng, at_once), occurrence
    return None


def drawn_plan(
    subject: Subject,
    drawn: Drawn,
    *,
    seed: int,
    count: int,
    after: int | None,
    coming: Coming = ONCE,
) -> tuple[DrawnPlan, TrialResult]:
    """Return the plan of a seed, and the golden run, which knows the steps that may be hit.

    Trials end after `after` steps. Raises UsageError if no step is in the epochs, SiteUnknown, FaultInvalid if the
    program fails without a fault.
    """
    models = [model_named(name) for name in drawn.models] or list(PUBLISHED.values())
    first, last = _epochs(drawn.epochs)
    if drawn.stage != "memory":
        subject.require_apart(coming)

    def sites_of(at: Address | None) -> list[Site]:
        return select(subject.sites(at), drawn.pattern, stage=drawn.stage)

    sites = dict[int, list[Site]]()
    try:
        sites[0] = sites_of(None)
    except SiteUnknown:
        if subject.is_inference or any(site.stage == "backward" for site in subject.sites()):
            raise
    golden = subject.whole(first)
    idle = idle_steps(golden)
    trained = sorted(cursor for cursor in golden.by_cursor() if cursor[2] >= 0 and cursor not in idle)
    steps = [cursor for cursor in trained if first <= cursor[1] < last]
    if not steps:
        raise UsageError(f"--epochs {drawn.epochs!r}: the program has no step in them", "give epochs from 0, for example 2:5")
    if 0 not in sites or min(idle, default=trained[0]) < trained[0]:  # the first step does not train: it fills a buffer
        sites[0] = sites_of(trained[0])
    for phase in sorted({cursor[0] for cursor in steps} - {0}):  # each phase may train another model
        try:
            sites[phase] = sites_of(next(cursor for cursor in trained if cursor[0] == phase))
        except SiteUnknown:
            messages.say(f"no fault is drawn in phase {phase} of training: no site there fits {drawn.pattern!r}")
    plan = DrawnPlan(
        seed,
        count,
        models,
        sites,
        [cursor for cursor in steps if cursor[0] in sites],
        sites_of,
        FIDELITY if drawn.shares == "fidelity" else None,
        after,
        LEAST_WITH_GUARD if subject.has_guard else 0,
        coming,
    )
    return plan, golden


def _epochs(text: str | None) -> tuple[int, float]:
    if text is None:
        return 0, math.inf
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise UsageError(f"--epochs {text!r} is not a range", "write it as A:B, for example 2:5 for the epochs 2, 3 and 4")
    return int(first or 0), int(last) if last else math.inf


def draw_model(models: Iterable[FaultModel], rng: np.random.Generator, shares: Mapping[str, float] | None = None) -> FaultModel:
    """Draw one of the models: uniformly, or by the shares of groups, evenly within a group.

    Groups without a model are left out; the other shares keep their ratios. Raises FaultInvalid if no model is left.
    """
    listed = list(models)
    groups = [GROUPS.get(model.name.split(":")[0], "local control") for model in listed]
    weights = np.array([(shares.get(group, 0.0) / groups.count(group) if shares else 1.0) for group in groups])
    if not weights.sum() > 0 or weights.min() < 0:
        raise FaultInvalid("there is no fault model to draw from", "give more models, or shares above 0")
    chosen = np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right")
    return listed[min(int(chosen), len(listed) - 1)]
