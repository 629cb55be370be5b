"""The plan of trials that `detrain random` would draw: each site as likely, whatever its size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import xxhash

from detrain.campaign.random_campaign import RandomCampaign
from detrain.faults.experiment import Experiment
from detrain.faults.models import FaultModel
from detrain.faults.population.facts import Facts, Told
from detrain.faults.population.groups import own_group, use_of
from detrain.faults.sites import Site


@dataclass(frozen=True)
class DrawnPlan:
    """So many trials of a random campaign."""

    campaign: RandomCampaign
    count: int

    @cached_property
    def digest(self) -> str:
        """What decides about each trial; the count does not, a longer plan goes on with a shorter one."""
        drawing = self.campaign.drawing
        sites = {str(phase): list(sites) for phase, sites in drawing.sites.items()}
        names = [model.name for model in drawing.models]
        parts = drawing.seed, sites, names, list(drawing.steps), drawing.shares, drawing.least, self.campaign.after
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))

    def trial(self, number: int) -> tuple[Facts, Experiment]:
        """Return what is known of a trial, and its experiment."""
        return self._facts(number, *self.campaign.drawing.trial(number, self.campaign.after))

    def told(self, number: int) -> Told:
        """Return that nothing is known beforehand."""
        return ""

    def again(self, number: int, plan: Experiment) -> tuple[Facts, Experiment] | None:
        """Return it drawn among the sites of its own step."""
        found = next(self.campaign.drawn_there(number, plan), None)
        return None if found is None else self._facts(number, *found)

    @cached_property
    def _sites(self) -> dict[str, Site]:
        return {site.name: site for sites in self.campaign.drawing.sites.values() for site in sites}

    def _facts(self, number: int, model: FaultModel, plan: Experiment) -> tuple[Facts, Experiment]:
        injection = plan.injection
        assert injection is not None
        site, positions = self._sites.get(injection.site), injection.array("positions")
        phase, epoch, batch = plan.at
        facts = Facts(
            number=number,
            stratum="all",
            weight=1.0,
            mode="IOV",
            group=int(own_group(site.op, injection.dtype, use_of(site))) if site is not None and site.stage != "memory" else -1,
            model=model.name,
            site=injection.site,
            layer=site.layer if site else "",
            op=site.op if site else "",
            stage=site.stage if site else "",
            operand=injection.operand,
            dtype=injection.dtype,
            phase=phase,
            epoch=epoch,
            batch=batch,
            occurrence=plan.occurrence,
            replica=injection.worker,
            position=int(positions[0]),
            elements=int(positions.size),
        )
        return facts, plan
