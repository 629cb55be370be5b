"""How often the state is held: so seldom that, with all that is done for it, it takes a thousandth of the time.

To hold a state takes time, and what lies behind the last one that is held is lost at a failure. With a cost of C and a
failure each M seconds, time is lost least where the state is held each sqrt(2 C M) seconds (Young 1974): of 10 ms and a
failure a day that is each 42 s, of one in an hour each 8 s. Holds have 0.7 thousandths: each 14 s then. The rest is
what is done at each batch, and by the thread that watches: 0.06 ms in 200 ms.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

SHARE: Final = 0.7e-3
_COPIED_BYTES_S: Final = 2e9
"""So fast is memory copied that is written while it is held: 12 MB took 5 ms."""
NEEDED: Final = 3
"""So many batches are gone through before the first hold: or it would not be known how long they take."""


class Rate:
    """Takes the times of batches and of holds, and says after how many batches the next hold is due.

    All times in seconds of one clock. The time of a batch has no hold in it.
    """

    def __init__(self) -> None:
        self._batches: deque[float] = deque(maxlen=32)
        self._holds: deque[float] = deque(maxlen=3)
        self._began: float | None = None

    def turn(self, now: float) -> None:
        """A batch has ended, and the next one begins."""
        if self._began is not None:
            self._batches.append(now - self._began)
        self._began = now

    def begin_batch(self, now: float) -> None:
        """A batch begins."""
        self._began = now

    def end_batch(self, now: float) -> None:
        """The batch has ended, if one had begun."""
        if self._began is not None:
            self._batches.append(now - self._began)
        self._began = None

    def held(self, took_s: float, size_bytes: int) -> None:
        """A state is held: that has taken so long, and so much will be copied if it is written."""
        self._holds.append(took_s + size_bytes / _COPIED_BYTES_S)

    @property
    def wish(self) -> int:
        """After how many batches the next state is to be held: the quickest of the last holds counts, as others had to
        wait for the processor.
        """
        if not self._batches or not self._holds:
            return 1
        return max(1, math.ceil(min(self._holds) / (SHARE * max(statistics.median(self._batches), 1e-6))))
