"""The numbers of a campaign's report: shares with intervals, of all trials and of parts (groups, layers, models …)."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import UsageError
from detrain.campaign.judging.categories import Category
from detrain.faults.outcome_classes import Outcome, Verdict
from detrain.faults.population.groups import Group
from detrain.faults.population.trial_row import OUTSIDE, TrialRow
from detrain.faults.statistics.estimates import ENOUGH, Estimate, Latency, Sample, ShareDifference, latency, paired, trials_for
from detrain.faults.statistics.intervals import CONFIDENCE
from detrain.reports.campaign.about import About
from detrain.reports.campaign.columns import (
    BIT_FIELDS,
    DEVIATIONS,
    Columns,
    are,
    bit_fields,
    columns_of,
    deviations,
    kinds,
    progress,
)
from detrain.reports.campaign.two_phase import Later

SOON: Final = 2
"""Steps, including the faulty one, within which a fault should be seen."""
_MOST: Final = 40
"""The most parts of a breakdown that are shown; those with the fewest trials are put together."""
_EXAMPLES: Final = 3
_OTHERS: Final = "(all others)"
_NO_GUARD: Final = -2


class Part(msgspec.Struct, frozen=True):
    """One part of the trials, for instance a group or a layer."""

    name: str
    trials: int
    harmful: Estimate
    outcomes: dict[str, float]
    """Estimated share of each outcome."""


class Breakdown(msgspec.Struct, frozen=True):
    """The trials split by one of their facts."""

    title: str
    parts: list[Part]


class HeatMap(msgspec.Struct, frozen=True):
    """Shares of harmful trials by the highest bit that was changed, in rows: one for each group, with fault models that
    change a single bit; and one for each other model, whose highest bit tells less."""

    rows: list[str]
    columns: list[str]
    cells: list[list[Estimate | None]]


class GuardSummary(msgspec.Struct, frozen=True):
    """The guard's alarms."""

    by_outcome: dict[str, tuple[int, int, int, int]]
    """For each outcome: trials, seen soon, seen later, not seen."""
    coverage: Estimate
    """Share of the harmful trials that were seen soon."""
    latency: Latency


class Corrupted(msgspec.Struct, frozen=True):
    """The effect of faults on a model's predictions, for one kind of corruption."""

    trials: Estimate
    """Trials with at least one such input."""
    inputs: int
    """Number of such inputs in all trials together; an input counts once in each trial."""


class Avf(msgspec.Struct, frozen=True):
    """The architectural vulnerability of one kind of memory: derating · live · share."""

    name: str
    live: float
    derating: float
    harmful: Estimate
    factor: float | None
    low: float
    high: float


class Example(msgspec.Struct, frozen=True):
    """A trial to look at."""

    number: int
    outcome: str
    what: str
    at: str
    command: str


class Size(msgspec.Struct, frozen=True):
    """Trials, and hours, that an interval of a half width takes."""

    half_width: float
    trials: int
    trials_for_share: int
    """Trials for a share like this campaign's."""
    hours: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign in numbers."""

    about: About
    trials: int
    outside: int
    """Trials of a list with an address outside of its tensor: none was run. A drawn plan has none."""
    confidence: float
    masked: Estimate
    harmful: Estimate
    not_judged: Estimate
    """Trials whose program, or horizon, does not show a result: they are part of no other share."""
    outcomes: dict[str, Estimate]
    categories: dict[str, Estimate]
    kinds: dict[str, Estimate]
    judged: dict[str, dict[str, int]]
    """For stdout, stderr, files and the user's check: the number of trials by verdict."""
    both: dict[str, dict[str, int]]
    """For each outcome, the number of trials by category number."""
    ends: dict[str, int]
    equal_again: Estimate
    """Trials in which all variables were the golden run's again at the end."""
    breakdowns: list[Breakdown]
    heat_map: HeatMap
    deviations: Breakdown
    progress: Breakdown
    guard: GuardSummary | None
    avf: list[Avf]
    sizes: list[Size]
    examples: list[Example]
    comparison: ShareDifference | None
    comparison_with: str = ""
    seconds: float = 0.0
    early: int = 0
    """Trials that were ended early, as they could only go on like the golden run."""
    inputs: int = 0
    """Of inference: number of inputs in all trials together."""
    corrupted: dict[str, Corrupted] = {}
    """Of inference, by kind of corruption: an input counts in all that apply, for instance in SDC-1 and SDC-20%."""
    later: Later | None = None
    """Of a campaign of two phases: the estimates at the horizon. All else is of the first phase."""


def summarize(
    rows: Sequence[TrialRow],
    about: About,
    *,
    other: tuple[str, Sequence[TrialRow]] | None = None,
    confidence: float = CONFIDENCE,
    later: Later | None = None,
) -> Summary:
    """Return the numbers of a campaign's report; `other`: name and rows of a campaign on the same plan, to compare
    with.

    Rows of the other are paired by number; the caller makes sure that these are the same faults. Addresses outside are
    counted, and are in no estimate. `later`: the estimates of a second phase.
    """
    outside = sum(row.outcome == OUTSIDE for row in rows)
    if outside:
        about = msgspec.structs.replace(about, outside=outside / len(rows))
        rows = [row for row in rows if row.outcome != OUTSIDE]
    if not rows:
        raise UsageError(f"all {outside} trials have addresses outside of their tensors: none is run", "give other trials")
    columns = columns_of(rows)
    sample = Sample(columns["weight"], columns["stratum"].astype(str), about.strata or None)
    harmful = are(Verdict.HARMFUL, columns)
    seen = _TrialSample(columns, sample, harmful, confidence)
    pairs = zip(columns["group"].tolist(), columns["mode"].tolist(), strict=True)
    group_names = np.array([_MEMORY if mode == "RF" else _group_name(number) for number, mode in pairs], object)
    total_s = float(columns["seconds"].sum())
    rate = about.rate if about.rate is not None else (len(rows) / total_s * 3600 if total_s > 0 else None)
    of_harm = sample.estimate(harmful, None, confidence)
    return Summary(
        about=about,
        trials=len(rows),
        outside=outside,
        confidence=confidence,
        masked=sample.estimate(are(Verdict.MASKED, columns), None, confidence),
        harmful=of_harm,
        not_judged=sample.estimate(are(Verdict.NOT_JUDGED, columns), None, confidence),
        outcomes=seen.shares_of(columns["outcome"], _order_of_outcomes(columns["outcome"])),
        categories=seen.categories(),
        kinds=seen.kinds(),
        judged={name: dict(sorted(collections.Counter(columns[name].tolist()).items())) for name in _JUDGED if columns[name].any()},
        both=_both(columns) if seen.kinds() else {},
        ends=dict(collections.Counter(str(end).partition(":")[0] or "status" for end in columns["end"]).most_common()),
        equal_again=sample.estimate(columns["is_equal"].astype(bool), None, confidence),
        breakdowns=[
            seen.by("group", group_names, _GROUPS),
            seen.by("fault model", columns["model"]),
            seen.by("stage", columns["stage"], ("forward", "backward", "optimizer")),
            seen.by("layer", columns["layer"]),
            seen.by("op", columns["op"]),
            seen.by("dtype", columns["dtype"]),
        ],
        heat_map=seen.heat_map(group_names),
        deviations=seen.by("change of the value", deviations(columns), DEVIATIONS),
        progress=seen.by("part of the training", *progress(columns)),
        guard=_guard(columns, seen) if (columns["alarm_after"] != _NO_GUARD).any() else None,
        avf=_avf(columns, seen, about),
        sizes=_sizes(of_harm, rate, confidence),
        examples=_examples(columns, about),
        comparison=_compared(columns, harmful, other[1], confidence) if other else None,
        comparison_with=other[0] if other else "",
        seconds=total_s,
        early=int((columns["early_after"] >= 0).sum()),
        inputs=int(columns["inputs"].sum()),
        corrupted=seen.corrupted() if columns["inputs"].any() else {},
        later=later,
    )


_CORRUPTIONS: Final = {
    "SDC-1": "sdc_1",
    "SDC-5": "sdc_5",
    "SDC-10%": "sdc_10",
    "SDC-20%": "sdc_20",
    "not finite": "nonfinite",
}
_JUDGED: Final = ("stdout", "stderr", "files", "check")


def _both(columns: Columns) -> dict[str, dict[str, int]]:
    found = {outcome: collections.Counter[str]() for outcome in _order_of_outcomes(columns["outcome"])}
    for outcome, category in sorted(zip(columns["outcome"].tolist(), columns["category"].tolist(), strict=True)):
        found[outcome][str(int(category))] += 1
    return {outcome: dict(counts) for outcome, counts in found.items()}


_KINDS: Final = ("masked", "DUE", "potential DUE", "SDC", "uncategorized", "untold")


_MEMORY: Final = "memory (RF)"


def _group_name(number: int) -> str:
    return "(no group)" if number < 0 else f"{number} {Group(number).label}"


_GROUPS: Final = (*map(_group_name, (*range(len(Group)), -1)), _MEMORY)


def _order_of_outcomes(outcomes: NDArray[Any]) -> list[str]:
    known = [each.value for each in Outcome]
    found = set(outcomes.tolist())
    return [each for each in known if each in found] + sorted(found - set(known))


class _TrialSample:
    """The trials, with estimates of parts of them."""

    def __init__(self, columns: Columns, sample: Sample, harmful: NDArray[np.bool_], confidence: float) -> None:
        self.columns, self.sample, self.harmful, self.confidence = columns, sample, harmful, confidence
        self.outcomes = _order_of_outcomes(columns["outcome"])

    def estimate(self, event: NDArray[np.bool_], part: NDArray[np.bool_] | None = None) -> Estimate:
        return self.sample.estimate(event, part, self.confidence)

    def corrupted(self) -> dict[str, Corrupted]:
        counts = {name: self.columns[field] for name, field in _CORRUPTIONS.items()}
        return {name: Corrupted(self.estimate(each > 0), int(each.sum())) for name, each in counts.items()}

    def shares_of(self, values: NDArray[Any], names: Iterable[str]) -> dict[str, Estimate]:
        return {name: self.estimate(values == name) for name in names}

    def categories(self) -> dict[str, Estimate]:
        """Return the categories' shares, if there are any. Their intervals hold all at once: they share the error. For
        trials of equal weight these are Goodman's.
        """
        category = self.columns["category"]
        present = [each for each in Category if (category == each).any()]
        if present in ([], [Category.UNTOLD]):
            return {}
        confidence = 1 - (1 - self.confidence) / len(present)
        return {f"{int(each)} {each.label}": self.sample.estimate(category == each, None, confidence) for each in present}

    def kinds(self) -> dict[str, Estimate]:
        """Return the shares of the categories' headings, if there are any."""
        of_trials = kinds(self.columns)
        present = [each for each in _KINDS if (of_trials == each).any()]
        return {} if present == ["untold"] else self.shares_of(of_trials, present)

    def by(self, title: str, values: NDArray[Any], order: Sequence[str] = ()) -> Breakdown:
        counts = collections.Counter(values.tolist())
        names = [name for name in order if counts[name]] if order else [name for name, _ in counts.most_common()]
        names += sorted(set(counts) - set(names))
        shown = names if len(names) <= _MOST else names[: _MOST - 1]
        parts = [self._part(str(name) or "(none)", values == name) for name in shown]
        if len(shown) < len(names):
            parts.append(self._part(_OTHERS, ~np.isin(values.astype(str), np.array(shown, str))))
        return Breakdown(title, parts)

    def _part(self, name: str, inside: NDArray[np.bool_]) -> Part:
        trials, harmful = int(inside.sum()), self.estimate(self.harmful, inside)
        if harmful.share is None or harmful.effective < ENOUGH:  # too few, by number or by weight
            return Part(name, trials, msgspec.structs.replace(harmful, share=None, low=0.0, high=1.0), {})
        outcomes = self.columns["outcome"]
        shares = {each: self.estimate(outcomes == each, inside).share for each in self.outcomes if (outcomes[inside] == each).any()}
        return Part(name, trials, harmful, {each: share for each, share in shares.items() if share is not None})

    def heat_map(self, groups: NDArray[Any]) -> HeatMap:
        fields = bit_fields(self.columns)
        columns = [field for field in BIT_FIELDS if (fields == field).any()]
        models = self.columns["model"]
        several = sorted({model for model, bits in zip(models, self.columns["bits"], strict=True) if "," in bits})
        is_single = ~np.isin(models.astype(str), np.array(several, str))
        present = set(groups[is_single].tolist())
        inside_of = {name: is_single & (groups == name) for name in _GROUPS if name in present}
        inside_of |= {f"{model}, all groups": models == model for model in several}
        rows = list(inside_of)

        def cell(row: str, column: str) -> Estimate | None:
            inside = inside_of[row] & (fields == column)
            return self.estimate(self.harmful, inside) if inside.any() else None

        return HeatMap(rows, columns, [[cell(row, column) for column in columns] for row in rows])


def _guard(columns: Columns, seen: _TrialSample) -> GuardSummary:
    after, steps = columns["alarm_after"], columns["steps"]
    looked = after != _NO_GUARD
    soon, is_seen = (after >= 0) & (after <= SOON), after >= 0
    table = {}
    for outcome in _order_of_outcomes(columns["outcome"][looked]):
        inside = looked & (columns["outcome"] == outcome)
        at_once, ever = int((inside & soon).sum()), int((inside & is_seen).sum())
        table[outcome] = (int(inside.sum()), at_once, ever - at_once, int(inside.sum()) - ever)
    harmful = looked & seen.harmful
    waits = np.where(is_seen, np.maximum(after, 1), np.maximum(steps, 1))[harmful]
    return GuardSummary(table, seen.estimate(soon, harmful), latency(waits.astype(np.int64), is_seen[harmful], seen.confidence))


def _avf(columns: Columns, seen: _TrialSample, about: About) -> list[Avf]:
    found = []
    for name, memory in about.memory.items():
        inside = (columns["mode"] == "RF") & (columns["stage"] == name)
        estimate = seen.estimate(seen.harmful, inside)
        factor = memory.live * memory.derating
        share = None if estimate.share is None else factor * estimate.share
        found.append(Avf(name, memory.live, memory.derating, estimate, share, factor * estimate.low, factor * estimate.high))
    return found


def _sizes(harmful: Estimate, rate: float | None, confidence: float) -> list[Size]:
    now = (harmful.high - harmful.low) / 2
    found = []
    for half_width in (0.05, 0.02, 0.01, 0.005, 0.001):
        trials = trials_for(half_width, confidence)
        # With the trials' weights of this campaign: an interval shrinks with the root of their number.
        of_share = trials if harmful.share is None else math.ceil(harmful.trials * (now / half_width) ** 2)
        found.append(Size(half_width, trials, of_share, of_share / rate if rate else None))
    return found


def _examples(columns: Columns, about: About) -> list[Example]:
    found = []
    for outcome in _order_of_outcomes(columns["outcome"]):
        if outcome == Outcome.MASKED.value:
            continue
        for place in np.flatnonzero(columns["outcome"] == outcome)[:_EXAMPLES]:
            one: Mapping[str, Any] = {name: values[place] for name, values in columns.items()}
            number = int(one["number"])
            what = f"{one['model']} in the {one['operand']} of {one['site']} [{one['position']}]"
            at = (f"{one['phase']}/" if one["phase"] else "") + f"{one['epoch']}:{one['batch']}"
            found.append(Example(number, outcome, what, at, about.replay.replace("{number}", str(number))))
    return found


def _compared(columns: Columns, harmful: NDArray[np.bool_], rows: Sequence[TrialRow], confidence: float) -> ShareDifference:
    theirs = columns_of(rows)
    _, mine, its = np.intersect1d(columns["number"], theirs["number"], assume_unique=True, return_indices=True)
    return paired(harmful[mine], are(Verdict.HARMFUL, theirs)[its], confidence)
