"""Trials drawn by chance: from a seed and a number, which step, fault model and site, and what the fault does there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.model_shares import draw_model
from detrain.faults.models import FaultModel
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site

DIGESTS_EVERY: Final = 10
"""Steps of a trial between digests of all variables. Its losses and metrics, to the bit, are those of each step."""
_DRAWS: Final = 100
"""So often a trial is drawn again whose model fits no site (all tensors are too small)."""


@dataclass(frozen=True)
class Drawing:
    """What trials are drawn from. A trial is a pure function of this and its number."""

    seed: int
    sites: Mapping[int, Sequence[Site]]
    """By phase."""
    models: Sequence[FaultModel]
    steps: Sequence[Address]
    shares: dict[str, float] | None
    least: int = 0
    """Steps that a trial runs on at least, though its loss is not finite."""

    def trial(
        self, number: int, after: int | None, there: tuple[Address, Sequence[Site]] | None = None
    ) -> tuple[FaultModel, Experiment]:
        """Return the model and the experiment of a trial: step, site, replica, positions and values.

        Raises FaultInvalid. `there`: a step and its own sites, which are drawn from. Other draws of the trial are as
        they would be.
        """
        rng = trial_rng(self.seed, number)
        for _ in range(_DRAWS):
            at = self.steps[int(rng.integers(len(self.steps)))]
            model = draw_model(self.models, rng, self.shares)
            at, sites = there or (at, self.sites[at[0]])
            found = _at_one_of([site for site in sites if model.operand.value in site.operands], model, rng)
            if found is None:
                continue
            injection, occurrence = found
            plan = Experiment(
                log="",
                injection=injection,
                at=at,
                occurrence=occurrence,
                count=after,
                stops_on_nonfinite=True,
                least=self.least,
                digests_every=DIGESTS_EVERY,
            )
            return model, plan
        raise FaultInvalid(
            f"no fault of {', '.join(model.name for model in self.models)} fits any site", "choose other --models, or a --site"
        )


def _at_one_of(sites: Sequence[Site], model: FaultModel, rng: np.random.Generator) -> tuple[Injection, int] | None:
    """Return a fault of a model at one of the sites that it fits, each as likely, and the run of the site, or None.

    So a model that some sites are too small for is drawn as often as the others.
    """
    for index in rng.permutation(len(sites)):
        site = sites[int(index)]
        worker = int(rng.integers(site.replicas))
        occurrence = int(rng.integers(site.executions)) if site.executions > 1 else 0
        with contextlib.suppress(FaultInvalid):
            return draw_injection(site, model, worker, rng), occurrence
    return None
