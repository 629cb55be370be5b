"""Writes pictures: PNG, SVG, or a page of HTML with the picture, a text and a table."""

from __future__ import annotations

import html
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from detrain.base.cursor import Address
from detrain.base.errors import UsageError

SUFFIXES: Final = (".png", ".svg", ".html")
BLUE, RED, GREY = "#4477aa", "#ee6677", "#888888"
"""Colours of Paul Tol's bright scheme, which colour-blind readers can distinguish."""


def check_plot(path: Path | None) -> None:
    """Raise UsageError for a file to which no picture can be written; called before anything runs."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {str(path)!r} is no picture", f"end it with one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401 - asked for here so that its absence is said before the run
    except ImportError as error:
        raise UsageError("--plot needs matplotlib", "install detrain[plot]") from error
    check_writable(path)


def check_writable(path: Path | None) -> None:
    """Raise UsageError for a file that cannot be made or overwritten; called before anything runs."""
    if path is None:
        return
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{str(path)!r} cannot be written", "give a file in a folder that can")


def mark_not_finite(axis: Any, places: Sequence[int], color: str) -> None:
    """Put crosses on the lower edge at the places where a value is INF or NaN."""
    if places:
        edge = axis.get_xaxis_transform()
        axis.plot(places, [0.02] * len(places), "x", color=color, ms=4, transform=edge, clip_on=False)


def drawn_values(axis: Any) -> list[float]:
    """Return the finite values of the curves on an axis."""
    values = [float(y) for line in axis.lines if line.get_transform() == axis.transData for y in line.get_ydata()]
    return [value for value in values if math.isfinite(value)]


def scale_losses(axis: Any) -> None:
    """Set the range of an axis of losses: the few largest may leave it, so that the others are no flat line."""
    known = sorted(drawn_values(axis))
    if known:
        low, high = known[0], max(known[int(0.98 * (len(known) - 1))], 1e-3)
        if low > 0:
            axis.set_yscale("log")
        else:
            axis.set_yscale("symlog", linthresh=1e-3)
        axis.set_ylim(low / 2 if low > 0 else 2 * low, 10 * high)


def label_epochs(axis: Any, cursors: Sequence[Address], marks: str) -> None:
    """Label the epochs on an axis of steps, and explain the marks in the picture."""
    starts = [index for index, cursor in enumerate(cursors) if cursor[2] == 0]
    step = max(len(starts) // 12, 1)
    axis.set_xticks(starts[::step], [str(cursors[index][1]) for index in starts[::step]])
    axis.set_xlabel(f"epoch (a point a step; {marks})")


def write_picture(path: Path, figure: Any, title: str, said: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a figure; a page of HTML also has a title, the text `said` above the picture, and a table below it."""
    if path.suffix != ".html":
        figure.savefig(path, dpi=150)
        return
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    lines = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "svg{width:100%;height:auto}td,th{padding:.1em 1em .1em 0;text-align:left;font-variant-numeric:tabular-nums}</style>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(said)}</p>{svg[svg.index('<svg') :]}"
        f"<table><tr>{_cells('th', heads)}</tr>{lines}</table></html>\n",
        encoding="utf-8",
    )


def _cells(kind: str, texts: Iterable[str]) -> str:
    return "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in texts)
