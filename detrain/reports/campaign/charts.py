"""Small pictures for the page of a campaign, as SVG text: bars of shares, intervals, a heat map, a curve of steps."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

from detrain.faults.outcome_classes import Outcome
from detrain.faults.statistics.estimates import ENOUGH, Estimate, Latency
from detrain.reports.campaign.summary import HeatMap

_GREY: Final = "#aaaaaa"
BLUE: Final = "#33668f"
_LINE: Final = "#c9ced6"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, with more digits if it is small."""
    if share is None:
        return "–"
    if 1e-9 < abs(share) < 0.01:
        digits = min(max(digits, 1 - math.floor(math.log10(abs(share) * 100))), 4)
    return f"{100 * share:.{digits}f} %"


def interval_text(estimate: Estimate) -> str:
    """Return an estimate as text: share and interval."""
    if estimate.share is None:
        return "too few trials"
    return f"{percent(estimate.share)} [{percent(estimate.low)} – {percent(estimate.high)}]"


def color_of(outcome: str) -> str:
    """Return the colour of an outcome; grey for a text that is no class."""
    found = Outcome.named(outcome)
    return _GREY if found is None else found.color


def shares_bar(shares: Mapping[str, float], width: int = 220, height: int = 14) -> str:
    """Return a bar with the shares beside one another; together they are at most 1."""
    parts, at = [], 0.0
    for outcome, share in shares.items():
        if share > 0:
            parts.append(
                f'<rect x="{at * width:.2f}" width="{max(share * width, 0.5):.2f}" height="{height}" fill="{color_of(outcome)}">'
                f"<title>{html.escape(outcome)}: {percent(share)}</title></rect>"
            )
        at += share
    said = ", ".join(f"{outcome} {percent(share)}" for outcome, share in shares.items())
    return (
        f'<svg class="bar" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{html.escape(said)}">{"".join(parts)}</svg>'
    )


def interval_mark(estimate: Estimate, most: float, width: int = 160, height: int = 14) -> str:
    """Return a dot with its interval on an axis from 0 to `most`; an empty text if there are too few trials."""
    if estimate.share is None:
        return ""
    scale = (width - 8) / most
    low, at, high = (4 + min(value, most) * scale for value in (estimate.low, estimate.share, estimate.high))
    middle = height / 2
    said = html.escape(f"{interval_text(estimate)}; {estimate.count} of {estimate.trials:,} trials")
    return (
        f'<svg class="mark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{said}">'
        f'<title>{said}</title><line x1="4" x2="{width - 4}" y1="{middle}" y2="{middle}" stroke="{_LINE}" stroke-width="1"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{BLUE}" stroke-width="2"/>'
        f'<circle cx="{at:.1f}" cy="{middle}" r="4" fill="{BLUE}"/></svg>'
    )


def axis_end(estimates: Sequence[Estimate]) -> float:
    """Return the end of an axis of shares: a round number above all shares and most of the intervals."""
    most = max([each.high for each in estimates if each.share is not None and each.trials >= ENOUGH] or [1.0])
    most = max([most, *(each.share for each in estimates if each.share is not None)])
    return next((end for end in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most <= end), 1.0)


def _shade(share: float) -> tuple[str, str]:
    """Return the fill for a share, and the colour of the text on it."""
    strength = math.sqrt(share)  # so that small shares differ visibly, too
    red, green, blue = (round(255 + (end - 255) * strength) for end in (153, 27, 60))
    return f"#{red:02x}{green:02x}{blue:02x}", "#fff" if strength > 0.6 else "#222"


def heat_map(shown: HeatMap) -> str:
    """Return the shares of harmful faults by row and bit field, with a scale. Cells with few trials are hollow, without
    a number; cells without trials are empty.
    """
    left = 24 + 7 * max(map(len, shown.rows), default=12)
    top, wide, high = 96, 46, 24
    width, height = max(left + wide * len(shown.columns) + 40, left + 240), top + high * len(shown.rows) + 44
    parts = []
    for number, name in enumerate(shown.columns):
        x = left + wide * (number + 0.5)
        parts.append(f'<text transform="translate({x:.0f} {top - 6}) rotate(-40)" class="tick">{html.escape(name)}</text>')
    for row, (name, cells) in enumerate(zip(shown.rows, shown.cells, strict=True)):
        y = top + high * row
        parts.append(f'<text x="{left - 8}" y="{y + high / 2 + 4:.0f}" text-anchor="end" class="tick">{html.escape(name)}</text>')
        for column, cell in enumerate(cells):
            if cell is not None:
                parts.append(_cell(left + wide * column, y, wide, high, f"{name}, {shown.columns[column]}", cell))
    parts.append(_scale(left, height - 30))
    return (
        f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="Share of harmful faults, by the highest bit that is changed">{"".join(parts)}</svg>'
    )


def _cell(x: float, y: float, wide: float, high: float, name: str, estimate: Estimate) -> str:
    said = html.escape(f"{name}: {interval_text(estimate)}, {estimate.trials:,} trials")
    is_hollow = estimate.share is None or estimate.trials < ENOUGH
    fill, ink = ("#fff", "#666") if is_hollow else _shade(estimate.share or 0.0)
    text = "" if is_hollow else f"{100 * (estimate.share or 0.0):.0f}"
    border = 'stroke="#b7bdc7" stroke-dasharray="2 2"' if is_hollow else 'stroke="#fff"'
    return (
        f'<g><title>{said}</title><rect x="{x + 1}" y="{y + 1}" width="{wide - 2}" height="{high - 2}" rx="2" '
        f'fill="{fill}" {border}/>'
        f'<text x="{x + wide / 2}" y="{y + high / 2 + 4}" text-anchor="middle" class="cell" fill="{ink}">{text}</text></g>'
    )


def _scale(x: float, y: float) -> str:
    """Return the scale of the colours, in percent."""
    wide, shares = 36, (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
    return "".join(
        f'<rect x="{x + number * wide}" y="{y}" width="{wide}" height="12" fill="{_shade(share)[0]}" stroke="{_LINE}"/>'
        f'<text x="{x + (number + 0.5) * wide}" y="{y + 25}" text-anchor="middle" class="tick">{100 * share:g} %</text>'
        for number, share in enumerate(shares)
    )


def latency_curve(found: Latency, last: int, width: int = 460, height: int = 150) -> str:
    """Return the curve of the share of faults that is seen by each step."""
    left, bottom, top = 44, height - 28, 10
    end = max(last, *found.steps, 1)

    def place(step: float, share: float) -> str:
        return f"{left + step / end * (width - left - 12):.1f},{bottom - share * (bottom - top):.1f}"

    points, before = [place(0, 0)], 0.0
    for step, share in zip(found.steps, found.seen, strict=True):
        points += [place(step, before), place(step, share)]
        before = share
    points.append(place(end, before))
    ticks = "".join(
        f'<line x1="{left}" x2="{width - 12}" y1="{(y := bottom - share * (bottom - top)):.1f}" y2="{y:.1f}" stroke="{_LINE}"/>'
        f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">{share:.0%}</text>'
        for share in (0, 0.5, 1)
    )
    marks = sorted({1, max(end // 2, 1), end})
    names = ""
    for step in marks:
        x = place(step, 0).partition(",")[0]
        names += f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" class="tick">{step}</text>'
    return (
        f'<svg class="curve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="Share of faults that the guard has seen, by steps">{ticks}{names}'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{BLUE}" stroke-width="2"/></svg>'
    )
