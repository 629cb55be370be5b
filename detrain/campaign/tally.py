"""How often each outcome came of the trials of a campaign, and how often the guard saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detrain.faults.record import FaultRecord
from detrain.faults.statistics.wilson import wilson

_SOON: Final = 2
"""Steps, the faulty one counted, within which a fault is to be seen."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """One outcome of a campaign."""

    outcome: str
    count: int
    total: int
    """Trials of the campaign, of all outcomes."""
    seen_soon: int
    """Of `count`, those in which the guard gave an alarm in the faulty step or the next one."""
    seen_later: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the outcome's share."""
        return wilson(self.count, self.total)

    @property
    def seen_interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of its trials that were seen soon."""
        return wilson(self.seen_soon, self.count)


def tally(records: Sequence[FaultRecord]) -> list[OutcomeCount]:
    """Return the counts of the outcomes, the most frequent first; of those as frequent, that which came first."""
    counts = []
    for outcome in dict.fromkeys(record.outcome for record in records):
        alarms = [record.alarm for record in records if record.outcome == outcome]
        soon = sum(alarm is not None and alarm.steps < _SOON for alarm in alarms)
        later = sum(alarm is not None for alarm in alarms) - soon
        counts.append(OutcomeCount(outcome, len(alarms), len(records), soon, later))
    return sorted(counts, key=lambda each: -each.count)
