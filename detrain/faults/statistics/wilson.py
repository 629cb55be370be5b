"""Shares of trials, and how sure they are."""

from __future__ import annotations

import math


def wilson(count: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the Wilson score interval (95 %) of a share, from 0 to 1.

    Wilson 1927, the equation in the text; Brown et al. 2001, equation 4.
    """
    share = count / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)
