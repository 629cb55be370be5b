"""Draws a trial beside its golden run: loss and accuracy by step, the fault marked. PNG, SVG or a page of HTML."""

from __future__ import annotations

import html
import io
import math
from pathlib import Path
from typing import Any, Final

from detrain.cli.outcomes import accuracy_of, loss_of
from detrain.cli.trials import Done
from detrain.errors import UsageError
from detrain.faults.experiment import Cursor, written
from detrain.faults.record import FaultRecord

SUFFIXES: Final = (".png", ".svg", ".html")
_GOLDEN, _FAULTY, _FAULT = "#4477aa", "#ee6677", "#888888"
"""Of Paul Tol's bright scheme, told apart by colour-blind readers too."""


def check_plot(path: Path | None) -> None:
    """Raise UsageError for a file that no picture can be written to, before anything runs."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {str(path)!r} is no picture", f"end it with one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401 - asked for here so that its absence is said before the run
    except ImportError as error:
        raise UsageError("--plot needs matplotlib", "install detrain[plot]") from error


def plot_trial(path: Path, record: FaultRecord, golden: Done, faulty: Done) -> None:
    """Write the picture of a trial."""
    from matplotlib.figure import Figure

    at, begin = record.experiment.at, min(faulty.by_cursor())
    cursors = sorted(key for key in golden.by_cursor() if key[0] == at[0] and key[2] >= 0 and key >= begin)
    has_accuracy = any(not math.isnan(accuracy_of(step)) for step in golden.steps)
    figure = Figure(figsize=(9, 5.5 if has_accuracy else 3.4), layout="constrained")
    axes = figure.subplots(2 if has_accuracy else 1, 1, sharex=True, squeeze=False)[:, 0]
    for axis, value, name in zip(axes, (loss_of, accuracy_of), ("loss", "accuracy"), strict=False):
        for done, color, label, width in ((golden, _GOLDEN, "golden", 2.4), (faulty, _FAULTY, "with the fault", 1.2)):
            known = done.by_cursor()
            points = [value(known[cursor]) if cursor in known else math.nan for cursor in cursors]
            axis.plot(range(len(points)), [p if math.isfinite(p) else math.nan for p in points], color=color, lw=width, label=label)
            _mark_not_finite(axis, points, color)
        axis.axvline(cursors.index(at), color=_FAULT, ls="--", lw=1, label=f"fault at {written(at)}")
        axis.set_ylabel(name)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9)
    _label_epochs(axes[-1], cursors)
    figure.suptitle(f"{record.model} in {_where(record)}: {record.outcome}", fontsize=11)
    if path.suffix == ".html":
        path.write_text(_page(record, figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=150)


def _mark_not_finite(axis: Any, points: list[float], color: str) -> None:
    """Put crosses on the lower edge where a value is INF or NaN."""
    bad = [index for index, point in enumerate(points) if math.isnan(point) or math.isinf(point)]
    if bad and len(bad) < len(points):
        axis.plot(bad, [0.02] * len(bad), "x", color=color, ms=4, transform=axis.get_xaxis_transform(), clip_on=False)


def _label_epochs(axis: Any, cursors: list[Cursor]) -> None:
    starts = [index for index, cursor in enumerate(cursors) if cursor[2] == 0]
    step = max(len(starts) // 12, 1)
    axis.set_xticks(starts[::step], [str(cursors[index][1]) for index in starts[::step]])
    axis.set_xlabel("epoch (a point a step; crosses: INF or NaN)")


def _where(record: FaultRecord) -> str:
    injection = record.experiment.injection
    return "" if injection is None else f"the {injection.operand} of {injection.site}"


def _page(record: FaultRecord, figure: Any) -> str:
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    rows = "".join(
        f"<tr><td>{html.escape(str(list(element.position)))}</td><td>{element.golden}</td><td>{element.injected}</td></tr>"
        for element in record.elements[:64]
    )
    rest = f"<p>and {len(record.elements) - 64} more elements</p>" if len(record.elements) > 64 else ""
    title = html.escape(f"{record.model} in {_where(record)} at {written(record.experiment.at)}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "svg{width:100%;height:auto}td,th{padding:.1em 1em .1em 0;text-align:left;font-variant-numeric:tabular-nums}</style>"
        f"<h1>{title}</h1><p>Outcome: <b>{html.escape(record.outcome)}</b>; program {html.escape(record.program)} "
        f"{html.escape(' '.join(record.arguments))}</p>{svg[svg.index('<svg') :]}"
        f"<h2>Elements</h2><table><tr><th>position</th><th>golden</th><th>injected</th></tr>{rows}</table>{rest}</html>\n"
    )
