"""What a campaign's plan says of a trial: its experiment, and the part of its row that is known before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from detrain.base.cursor import Address
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site

DIGESTS_EVERY: Final = 10
"""Steps of a trial between digests of all variables. Its losses and metrics, to the bit, are those of each step."""

_OF_DUTY: Final = 1 << 62
"""Random numbers from here on are no trial's."""

Mode = Literal["IOV", "IOA", "RF"]
"""SASSIFI's modes: the value of an instruction, the address that it writes to, a register file (memory here)."""


Told = Literal["", "address outside", "never read"]
"""What is known of a trial without running it: nothing; its address is behind the tensor's end, and what a device does
there nothing here can tell; nothing depends on what it hits, so that it is masked for certain."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan knows of one trial."""

    number: int
    """Index in the plan, from 0."""
    stratum: str
    weight: float
    """How many times as likely the trial is in the population as in the drawing (f / q); 1 where they are the same."""
    mode: Mode
    group: int
    """SASSIFI's instruction group, 0 to 13; -1 for RF."""
    model: str
    site: str
    """Of RF: the variable's, `memory/` and its name."""
    layer: str
    op: str
    stage: str
    """forward, backward, optimizer; of RF the class of memory: weight, slot, statistic, stream, batch."""
    operand: str
    dtype: str
    phase: int
    epoch: int
    batch: int
    occurrence: int
    replica: int
    position: int
    """Flat row-major index of the first element that is hit; in mode IOA of the one that is not written."""
    elements: int
    """How many are hit."""


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """How a fault comes: once, for some steps, for good, now and then; and how many at once."""

    steps: int = 1
    """Steps in a row from the first on that may be hit; 0: all."""
    duty: float = 1.0
    """The chance with which each of them is, behind the first."""
    at_once: int = 1
    """Faults that come at once."""
    among: Literal["tensor", "step"] = "tensor"
    """Where these are: in one tensor, or each in a tensor of its own, any of the step's."""


ONCE: Final = Coming()
"""One fault in one step."""
Planned = tuple[Facts, Experiment]
"""A trial before it is run."""


class CampaignPlan(Protocol):
    """The trials of a campaign: a pure function of the number."""

    @property
    def digest(self) -> str:
        """Return what decides about each trial, hex. The count does not: a longer plan goes on with a shorter one."""

    @property
    def count(self) -> int:
        """Return how many trials there are; their numbers are from 0."""

    def trial(self, number: int) -> Planned:
        """Return a trial. Raises FaultInvalid for a number that is not in the plan."""

    def told(self, number: int) -> Told:
        """Return what is known of a trial without running it; its experiment has no injection then."""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return a trial whose fault did not fire drawn again, where its step has other sites; None: it is not."""


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
    """Return a trial: a fault at a site in a step, which runs `after` steps, and `least` though no loss is finite.

    `seed`: the plan's, by which an intermittent fault's steps are drawn; `also`: see `Experiment`.
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
