"""The figures that matplotlib's `pyplot` keeps open: what is drawn into one from epoch to epoch is not captured, and
named.
"""

from __future__ import annotations

import sys
from typing import Any

NAME = "figures of matplotlib.pyplot that stay open (drawn into in the loop, harmless)"


def drawn() -> dict[int, tuple[int, ...]]:
    """Return how many things are in each of the axes of the open figures."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    managers = {} if helpers is None else dict(helpers.Gcf.figs)
    return {number: tuple(len(axes.get_children()) for axes in each.canvas.figure.axes) for number, each in managers.items()}
