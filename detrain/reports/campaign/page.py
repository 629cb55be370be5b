"""The report of a campaign as one self-contained page of HTML, as lines of text, and as JSON."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from detrain.faults.population.trial_row import OUTSIDE
from detrain.faults.statistics.estimates import ENOUGH, Estimate
from detrain.faults.statistics.intervals import library
from detrain.reports.campaign import charts
from detrain.reports.campaign.summary import SOON, Avf, Summary

_WIDE: Final = 0.05
"""Half width of a share's interval above which there is a warning."""
_TRIFLE: Final = 1e-4
"""A share of the population that changes no estimate."""
_TEMPLATE: Final = Path(__file__).with_name("page.html")


def page_of(summary: Summary) -> str:
    """Return the page. Raises UsageError if jinja2 is not installed."""
    jinja2 = library("jinja2")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    about = summary.about
    published = collections.defaultdict(list)
    for each in about.published:
        published[each.outcome].append(each)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return str(
        template.render(
            s=summary,
            title=f"{summary.trials:,} fault{'s' * (summary.trials != 1)} in {about.program}",
            command=" ".join((about.program, *about.arguments)),
            verdict=verdict(summary),
            warnings=list(warnings(summary)),
            level=f"{100 * summary.confidence:g} %",
            published=published,
            enough=ENOUGH,
            soon=SOON,
            horizon=horizon_text(summary),
            facts={
                "profile": about.profile_digest,
                "plan": about.plan_digest,
                "table": about.table_digest,
                "detrain": about.version,
                **about.options,
                **about.environment,
            },
            percent=charts.percent,
            signed=_signed,
            interval_text=charts.interval_text,
            interval_mark=charts.interval_mark,
            shares_bar=charts.shares_bar,
            axis_end=charts.axis_end,
            heat_map=charts.heat_map,
            latency_curve=charts.latency_curve,
            color_of=charts.color_of,
        )
    )


def write_page(path: Path, summary: Summary) -> None:
    """Write the page; it appears as a whole or not at all. Raises UsageError if jinja2 is not installed."""
    text = page_of(summary)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def verdict(summary: Summary) -> str:
    """Return the results of the faults in one sentence."""
    if summary.harmful.share is None:
        return f"{summary.trials:,} trials are too few to say anything."
    level = f"{100 * summary.confidence:g} % interval"
    said = (
        f"{_share_and_interval(summary.harmful)} of the faults are harmful ({level}), {_share_and_interval(summary.masked)} masked"
    )
    if summary.not_judged.count:
        said += f", {_share_and_interval(summary.not_judged)} could not be judged"
    if summary.equal_again.share is not None:
        where = "what the model gives" if summary.corrupted else "any variable"
        said += f"; {charts.percent(summary.equal_again.share)} leave no trace in {where}"
    shares = {name: each.share for name, each in summary.outcomes.items() if each.share and name != "masked"}
    others = sorted(((share, name) for name, share in shares.items() if share), key=lambda pair: -pair[0])
    if others:
        said += "; the most frequent outcomes beside masked: " + ", ".join(
            f"{name} {charts.percent(share)}" for share, name in others[:3]
        )
    return said + "."


def _share_and_interval(estimate: Estimate) -> str:
    return f"{charts.percent(estimate.share)} [{charts.percent(estimate.low)} – {charts.percent(estimate.high)}]"


def warnings(summary: Summary) -> Iterator[str]:
    """Yield the warnings that a reader needs before the numbers."""
    about = summary.about
    if about.not_fired:
        yield f"{about.not_fired:,} of {about.planned:,} faults did not fire (other steps than the profile's): in no estimate."
    if (missing := about.planned - summary.trials - about.not_fired) > 0:
        yield (
            f"{missing:,} of {about.planned:,} planned trials have not been run. Looked at again and"
            " again, intervals leave out the truth more often than they say; planned looks do not."
        )
    if summary.masked.covered < 1 - _TRIFLE:
        yield f"{charts.percent(1 - summary.masked.covered)} of the population is in strata without a trial, and in no estimate."
    half_width = (summary.harmful.high - summary.harmful.low) / 2
    if half_width > _WIDE:
        size = next(size for size in summary.sizes if size.half_width == _WIDE)
        yield (
            f"{summary.trials:,} trials tell the harmful share to ± {charts.percent(half_width)} only, and of most parts nothing:"
            f" ± {charts.percent(_WIDE, 0)} takes about {size.trials_for_share:,} trials in all."
        )
    if about.overlaps:
        yield "Groups overlap, or modes are mixed: shares of all trials together are of no one population; those of a group are."


def _signed(share: float) -> str:
    return ("+" if share > 0 else "") + charts.percent(share)


def _compared(summary: Summary, level: str) -> list[str]:
    found = summary.comparison
    if found is None:
        return []
    low, high = (_signed(each) for each in found.interval)
    return [
        f"beside {summary.comparison_with}, on {found.trials:,} trials of the same faults: the share of harmful faults differs by "
        f"{_signed(found.difference)} ({level} {low} to {high}); harmful in both {found.both:,}, in this one alone "
        f"{found.first_only:,}, in the other alone {found.second_only:,}"
    ]


def lines_of(summary: Summary) -> list[str]:
    """Return the report as lines of text, for a terminal: the verdict, outcomes, groups, models."""
    level = f"{100 * summary.confidence:g} % interval"
    lines = [f"{summary.trials:,} trials: {verdict(summary)}", *warnings(summary), ""]
    rows = [
        [name, f"{each.count:,}", charts.percent(each.share), _between(each.low, each.high, each.share)]
        for name, each in summary.outcomes.items()
    ]
    if summary.about.outside:
        count = f"{summary.outside:,}" if summary.outside else "–"
        rows.append([f"{OUTSIDE} (none is run)", count, charts.percent(summary.about.outside), "of all, an exact count"])
    lines += _table(["outcome", "trials", "share", level], rows)
    if summary.corrupted:
        rows = [
            [
                name,
                f"{each.trials.count:,}",
                charts.percent(each.trials.share),
                _between(each.trials.low, each.trials.high, each.trials.share),
                f"{each.inputs:,}",
            ]
            for name, each in summary.corrupted.items()
        ]
        lines += ["", *_table(["with an input", "trials", "share", level, f"of {summary.inputs:,} inputs"], rows)]
    if summary.categories:
        rows = [
            [
                name,
                f"{each.count:,}",
                charts.percent(each.share),
                _between(each.low, each.high, each.share),
                _outcomes(summary, name),
            ]
            for name, each in summary.categories.items()
        ]
        lines += ["", *_table(["category", "trials", "share", level, "of the outcomes"], rows)]
    if summary.early:
        lines += [f"{summary.early:,} were ended early: their whole state was the golden run's again"]
    lines += _later(summary, level)
    lines += _compared(summary, level)
    for name, counts in summary.judged.items():
        lines += [f"{name}: " + ", ".join(f"{how or 'without'} {count:,}" for how, count in counts.items())]
    for breakdown in summary.breakdowns[:3]:
        rows = [
            [part.name, f"{part.trials:,}", charts.percent(mark.share), _between(mark.low, mark.high, mark.share)]
            for part in breakdown.parts
            for mark in [part.harmful]
        ]
        lines += ["", *_table([breakdown.title, "trials", "harmful", level], rows)]
    if summary.avf:
        rows = [
            [each.name, *map(charts.percent, (each.derating, each.live, each.harmful.share, each.factor)), _between(*_range(each))]
            for each in summary.avf
        ]
        lines += ["", *_table(["memory", "of the device", "live", "harmful", "factor", level], rows)]
    return [*lines, "", *_explained(summary)]


def _range(avf: Avf) -> tuple[float, float, float | None]:
    return avf.low, avf.high, avf.factor


def _explained(summary: Summary) -> Iterator[str]:
    """Yield sentences that explain the intervals in the lines above."""
    sure = f"{100 * summary.confidence:g}"
    yield f"Each interval of an outcome, a group or a model holds by itself: of 100 such, about {sure} have the truth."
    if any(part.harmful.share is None for breakdown in summary.breakdowns[:3] for part in breakdown.parts):
        yield f"Too few: trials worth fewer than {ENOUGH} that stand for equal shares of the population."
    if summary.categories:
        yield f"The intervals of the categories hold all at once, with {sure} %: they are wider."


def horizon_text(summary: Summary) -> str:
    """Return the end of the second phase's trials, as text; empty if there is no second phase."""
    later = summary.later
    return "" if later is None else f"{later.horizon} steps" if later.horizon is not None else "the program's end"


def _later(summary: Summary, level: str) -> list[str]:
    later = summary.later
    if later is None:
        return []
    known = sum(known for _, known in later.classes.values())
    lines = ["", f"above: all {later.first:,} trials, {later.first_steps} steps; to {horizon_text(summary)}, of {known:,} of them:"]
    if later.missing:
        return [*lines, f"{later.missing:,} of {later.second:,} have not been run yet: nothing is estimated before"]
    rows = [[name, charts.percent(each.share), _between(each.low, each.high, each.share)] for name, each in later.outcomes.items()]
    lines += _table(["outcome", "share", level], rows)
    parts = [[name, f"{count:,}", f"{ran:,}"] for name, (count, ran) in later.classes.items()]
    return [*lines, "", *_table(["behind the first phase", "trials", "known to the end"], parts)]


def _outcomes(summary: Summary, category: str) -> str:
    """Return the outcomes of a category's trials, with their numbers, as text."""
    number = category.partition(" ")[0]
    return ", ".join(f"{outcome} {counts[number]:,}" for outcome, counts in summary.both.items() if number in counts)


def _between(low: float, high: float, share: float | None) -> str:
    return "too few trials" if share is None else f"{charts.percent(low)} – {charts.percent(high)}"


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *others = (
            cell.ljust(width) if number in (0, len(cells) - 1) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    return [line(heads), *map(line, rows)]


def json_of(summary: Summary) -> bytes:
    """Return the report as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n"
