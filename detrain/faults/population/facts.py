"""A campaign's plan of one trial: its experiment, and the part of its row that is known before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from detrain.base.cursor import Address
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site

DIGESTS_EVERY: Final = 10
"""Steps of a trial between digests of all variables. Losses and metrics are kept to the bit for every step."""

_OF_DUTY: Final = 1 << 62
"""Random numbers from here on are used by no trial."""

Mode = Literal["IOV", "IOA", "RF"]
"""SASSIFI's modes: the value of an instruction, the address that it writes to, a register file (here: memory)."""


Told = Literal["", "address outside", "never read"]
"""A trial's result that is known without a run: none; its address is behind the tensor's end, where nothing here can
tell what a device does; or nothing depends on the element that it hits, so that it is masked for certain."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The plan's facts about one trial."""

    number: int
    """Index in the plan, from 0."""
    stratum: str
    weight: float
    """The trial's probability in the population over that in the drawing (f / q); 1 if they are the same."""
    mode: Mode
    group: int
    """SASSIFI's instruction group, 0 to 13; -1 for RF."""
    model: str
    site: str
    """Name of the site; for RF that of the variable: `memory/` and its name."""
    layer: str
    op: str
    stage: str
    """forward, backward, optimizer; for RF the kind of memory: weight, slot, statistic, stream."""
    operand: str
    dtype: str
    phase: int
    epoch: int
    batch: int
    occurrence: int
    replica: int
    position: int
    """Flat row-major index of the first element that is hit; in mode IOA of the element that is not written."""
    elements: int
    """Number of elements that are hit."""


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which a fault comes: once, for some steps, for good, now and then; and how many come at once."""

    steps: int = 1
    """Steps in a row, from the first on, that may be hit; 0: all."""
    duty: float = 1.0
    """The chance with which each of them is hit; the first always is."""
    at_once: int = 1
    """Faults that come at once."""
    among: Literal["tensor", "step"] = "tensor"
    """The places of simultaneous faults: all in one tensor, or each in its own tensor of the step."""


ONCE: Final = Coming()
"""One fault in one step."""
Planned = tuple[Facts, Experiment]
"""A trial before its run."""


class CampaignPlan(Protocol):
    """The trials of a campaign: each is a pure function of its number."""

    @property
    def digest(self) -> str:
        """Return the digest of all that decides about trials, hex. The count does not: a longer plan goes on."""

    @property
    def count(self) -> int:
        """Return the number of trials; trials are numbered from 0."""

    def trial(self, number: int) -> Planned:
        """Return a trial. Raises FaultInvalid for a number that is not in the plan."""

    def told(self, number: int) -> Told:
        """Return a trial's result if it is known without a run; its experiment has no injection then."""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return a trial drawn again whose fault did not fire, if its step has other sites; None: it stays unfired."""


def planned(
    number: int,
    site: Site,
    injection: Injection,
    at: Address,
    occurrence: int,
    *,
    model: str,
    after: int | None,
    least: int,
    group: int,
    mode: Mode = "IOV",
    stratum: str = "all",
    weight: float = 1.0,
    coming: Coming = ONCE,
    seed: int = 0,
    also: Sequence[tuple[Injection, int]] = (),
) -> Planned:
    """Return a trial: a fault at a site in a step, with `after` steps, and at least `least` if a loss is not finite.

    `seed`: the plan's, which draws the steps of an intermittent fault; `also`: see `Experiment`.
    """
    phase, epoch, batch = at
    hit = injection.array("positions")
    facts = Facts(
        number=number,
        stratum=stratum,
        weight=weight,
        mode=mode,
        group=group,
        model=model,
        site=site.name,
        layer=site.layer,
        op=site.op,
        stage=site.op if mode == "RF" else site.stage,
        operand=injection.operand,
        dtype=injection.dtype,
        phase=phase,
        epoch=epoch,
        batch=batch,
        occurrence=occurrence,
        replica=injection.worker,
        position=int(injection.array("sources")[0] if mode == "IOA" else hit[0]),
        elements=int(hit.size),
    )
    return facts, Experiment(
        log="",
        injection=injection,
        at=at,
        steps=coming.steps,
        duty=coming.duty,
        duty_seed=int(trial_rng(seed, _OF_DUTY + number).integers(1 << 63)) if coming.duty < 1 else 0,
        occurrence=occurrence,
        also=tuple(also),
        count=after,
        stops_on_nonfinite=True,
        least=least,
        digests_every=DIGESTS_EVERY,
    )
