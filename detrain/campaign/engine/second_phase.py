"""A campaign of two phases: all trials run a few steps, and some of them to the horizon, in a campaign beside it.

The second one's plan is the first one's with another horizon: the same numbers are the same faults. Which of them are
run is a pure function of the first one's rows, so it is the same for any workers, and whatever was killed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from detrain.campaign.engine.header import Campaign, Header, load, make
from detrain.campaign.engine.ledger import Ledgers
from detrain.faults.population.stopping import second_phase

_PREFIX = "second"


def make_both(header: Header, home: Path, name: str) -> Campaign:
    """Write the plans of both phases; return the first. Raises CampaignStopped, StoreError."""
    assert header.two_phase is not None
    make(msgspec.structs.replace(header, two_phase=None), home, name, prefix=_PREFIX)
    return make(msgspec.structs.replace(header, after=header.two_phase.first), home, name)


def second_of(campaign: Campaign) -> Campaign | None:
    """Return the campaign of the second phase; None where there is none. Raises CampaignStopped."""
    if campaign.header.two_phase is None:
        return None
    folder = campaign.folder.with_name(campaign.folder.name.replace("campaign", _PREFIX, 1))
    return load(folder, must_be_as_now=not campaign.subject.is_of_past)


def numbers_of_second(campaign: Campaign) -> list[int] | None:
    """Return the trials that are run on; None as long as the first phase is not whole."""
    header, ledgers = campaign.header, Ledgers(campaign.ledgers, campaign.plan.digest)
    assert header.two_phase is not None
    if not set(range(campaign.plan.count)) <= ledgers.known():
        return None
    rows = [row for row in ledgers.rows() if row.number < campaign.plan.count]
    return second_phase(rows, header.two_phase.trials, header.seed)
