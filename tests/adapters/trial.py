"""The experiment of a process that tests an adapter's instruments without a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from detrain.faults.experiment import Experiment

PROFILE: Final = Experiment(log="", is_profile=True)


class Trial:
    """Keeps the adapter's instruments."""

    instruments: Any

    def __init__(self, plans: Sequence[Experiment] = (PROFILE,)) -> None:
        self.plans = plans

    def attach(self, instruments: Any) -> None:
        """Keep the adapter's instruments."""
        self.instruments = instruments

    def ends_with(self, _loss: Callable[[], float]) -> bool:
        return False

    def ends_with_error(self, _error: Exception, _frame: FrameType) -> bool:
        return False
