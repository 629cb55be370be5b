"""`detrain campaign plan`: choose the faults, their steps, and their number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import msgspec

from detrain.base.errors import UsageError
from detrain.base.options import Option
from detrain.cli.campaign.common import Chosen
from detrain.cli.shared.fault_options import (
    After,
    Among,
    AtOnce,
    DrawnBy,
    Guarded,
    OfInference,
    OfStage,
    Shares,
    Thresholds,
    TrialLimit,
    require_several,
    steps_hit,
)
from detrain.cli.shared.options import program_command
from detrain.cli.shared.printing import print_json

if TYPE_CHECKING:
    from detrain.campaign.engine.header import Campaign, Header, TwoPhase
    from detrain.faults.population.facts import Coming
    from detrain.faults.population.frame import Selection


_IOV_MODELS = "FLIP:1,ADJ:2,RANDOM,ZERO"


class Number(msgspec.Struct, kw_only=True):
    """Options for the number of trials."""

    count: Annotated[int | None, Option("How many trials [as the half-width says, or 1000].", flag="-n", least=1)] = None
    half_width: Annotated[float | None, Option("So near shall a share be known: 1 for ± 1 %.", "PERCENT")] = None
    confidence: Annotated[float, Option("With --half-width.", "PERCENT")] = 95.0

    def of_trials(self) -> int:
        """Return the number of trials. Raises UsageError."""
        if self.count is not None and self.half_width is not None:
            raise UsageError(f"-n {self.count} and --half-width {self.half_width} both say how many trials", "give one of them")
        if self.half_width is None:
            return self.count if self.count is not None else _USUAL
        if not 0 < self.half_width < _HALF or not 0 < self.confidence < _WHOLE:
            raise UsageError(
                f"--half-width {self.half_width} --confidence {self.confidence}", "give percent: 1 and 95, for example"
            )
        from detrain.faults.statistics.estimates import trials_for

        return trials_for(self.half_width / _WHOLE, self.confidence / _WHOLE)


class Population(msgspec.Struct, kw_only=True):
    """Options for the faults that trials are drawn from."""

    seed: DrawnBy = 0
    mode: Annotated[
        Literal["IOV", "IOA", "RF", "ISCA"],
        Option("IOV: values of ops. IOA: addresses. RF: memory between steps. ISCA: as `detrain random` draws."),
    ] = "IOV"
    models: Annotated[
        str | None, Option(f"Fault models [{_IOV_MODELS}; IOA, RF: the first two; ISCA: the 18 published].", "A,B,…")
    ] = None
    groups: Annotated[str | None, Option("SASSIFI's groups of ops, by name or number [all, each output once].", "A,B,…")] = None
    rule: Annotated[Literal["elements", "work", "bytes", "site"], Option("What makes an output likely to be hit.", flag="--by")] = (
        "elements"
    )
    strata: Annotated[str, Option("Each gets its share of trials.", "A,B,…")] = "stage,group"
    pilot: Annotated[str | None, Option("Share the trials out by what this campaign has found (Neyman).", "NAME")] = None
    shares: Annotated[Shares, Option("Of ISCA models.")] = "uniform"
    pattern: Annotated[
        str, Option("Sites to draw from [all; ISCA: matrix products].", "PATTERN", flag="--site", shows_default=False)
    ] = "*"
    stage: OfStage = None
    epochs: Annotated[str | None, Option("ISCA: only steps of the epochs from A on, before B.", "A:B")] = None
    listed: Annotated[Path | None, Option("The faults of a list of SASSIFI's or NVBitFI's.", flag="--list")] = None
    list_of: Annotated[Literal["sassifi", "nvbitfi"], Option("Whose list.")] = "sassifi"

    def check(self, number: Number) -> None:
        """Raise UsageError for options of another mode, and for a list with options that would draw other faults."""
        if self.mode != "ISCA" and (self.epochs is not None or self.shares != "uniform"):
            raise UsageError("--epochs and --shares are of the mode ISCA", "add --mode ISCA, or leave them out")
        if self.mode == "ISCA" and (self.groups is not None or self.pilot is not None or self.rule != "elements"):
            raise UsageError("--groups, --by and --pilot are of the other modes", "give --mode IOV, IOA or RF")
        others = {"-n": number.count, "--half-width": number.half_width, "--models": self.models}
        others |= {"--groups": self.groups, "--pilot": self.pilot, "--epochs": self.epochs}
        given = ", ".join(name for name, value in others.items() if value is not None)
        if self.listed is not None and given:
            raise UsageError(
                f"--list {str(self.listed)!r} says which faults, and {given} would draw others", "leave one of them out"
            )

    def given_to(self, header: Header, home: Path) -> Header:
        """Return the header with the source of its trials. Raises FaultInvalid for an invalid list or an unknown model,
        UsageError for other wrong choices, CampaignStopped for a pilot without strata.
        """
        from detrain.campaign.engine.header import Listing, Sampled, shared_out_by
        from detrain.campaign.planning.drawn_plan import Drawn
        from detrain.faults.exchange.lists import parse_name, read_list
        from detrain.faults.models import model_named

        if self.listed is not None:
            listing = Listing(name=parse_name(self.listed), tool=self.list_of, lines=tuple(read_list(self.listed)))
            return msgspec.structs.replace(header, listing=listing, count=len(listing.lines))
        names = tuple(
            _parts({"ISCA": "", "IOV": _IOV_MODELS}.get(self.mode, "FLIP:1,ADJ:2") if self.models is None else self.models)
        )
        if self.mode == "ISCA":
            for name in names:
                model_named(name)
            drawn = Drawn(models=names, shares=self.shares, pattern=self.pattern, stage=self.stage, epochs=self.epochs)
            return msgspec.structs.replace(header, drawn=drawn)
        sampled = Sampled(choice=self._choice(names))
        if self.pilot is not None:
            sampled = shared_out_by(header, sampled, home, self.pilot)
        return msgspec.structs.replace(header, sampled=sampled)

    def _choice(self, models: tuple[str, ...]) -> Selection:
        from detrain.faults.population.frame import PARTS, Selection, check_choice

        wanted = {"seed": self.seed, "modes": [self.mode], "groups": _parts(self.groups), "models": models, "rule": self.rule}
        wanted |= {"strata": _parts(self.strata), "site": self.pattern, "stage": self.stage or ""}
        try:
            choice = msgspec.convert(wanted, type=Selection)
        except msgspec.ValidationError as error:
            raise UsageError(f"--strata {wanted['strata']}: {error}", f"give some of {', '.join(PARTS)}") from error
        check_choice(choice)
        return choice


class Hits(msgspec.Struct, kw_only=True):
    """Options for the times at which faults come, and how many come at once."""

    steps: Annotated[int | None, Option("How many steps in a row a fault hits [1].", "N", least=1)] = None
    permanent: Annotated[bool, Option("A fault hits all steps from the first on.")] = False
    duty: Annotated[float | None, Option("An intermittent fault: each step behind the first is hit with this chance.", "SHARE")] = (
        None
    )
    at_once: AtOnce = 1
    among: Among = "tensor"

    def coming(self, after: int | None, population: Population) -> Coming:
        """Return the times and numbers of the faults. Raises UsageError if the options contradict each other."""
        from detrain.faults.population.facts import ONCE, Coming

        steps, duty = steps_hit(self.steps, is_permanent=self.permanent), self.duty
        if duty is not None and not 0 < duty < 1:
            raise UsageError(f"--duty {duty} is no chance of a step", "give a share between 0 and 1, such as 0.1")
        if duty is not None and steps == 1:
            raise UsageError(
                "--duty is of faults in several steps, --steps 1 is one", "leave out --steps: all steps may be hit then"
            )
        if steps and after is not None and steps > after:
            raise UsageError(
                f"--steps {steps} hits more than the {after} steps of a trial", "give fewer --steps, or a later --after"
            )
        require_several(self.at_once, self.among)
        if self.at_once > 1 and population.mode == "IOA":
            raise UsageError("--at-once is of values, and a wrong address (mode IOA) is one write", "give --mode IOV, RF or ISCA")
        several = (0 if duty is not None else 1) if steps is None else steps
        coming = Coming(steps=several, duty=1.0 if duty is None else duty, at_once=self.at_once, among=self.among)
        if population.listed is not None and coming != ONCE:
            raise UsageError("a --list has one fault in one step a line", "leave out --steps, --permanent, --duty and --at-once")
        return coming


class Phases(msgspec.Struct, kw_only=True):
    """Options for a campaign of two phases."""

    second: Annotated[int | None, Option("All trials run --first steps, N of them on.", "N", flag="--two-phase", least=1)] = None
    first: Annotated[int | None, Option("Steps of the first phase [3].", "N", least=1)] = None

    def wanted(self, after: int | None, of_end: str) -> TwoPhase | None:
        """Return the settings of two phases; None for one phase. Raises UsageError for options that do not fit."""
        from detrain.campaign.engine.header import TwoPhase

        if self.second is None:
            if self.first is not None:
                raise UsageError(f"--first {self.first} is of a campaign of two phases", "add --two-phase N")
            return None
        first = _FIRST if self.first is None else self.first
        if after is not None and after <= first:
            raise UsageError(f"--after {after} ends trials in their first phase of {first} steps", "give a later horizon")
        if of_end:
            raise UsageError(f"{of_end} judges the program's end, which the first phase does not see", "leave one out")
        return TwoPhase(first=first, trials=self.second, horizon=after)


class Judging(msgspec.Struct, kw_only=True):
    """Options for the judgement of trials, beside that of their steps."""

    check: Annotated[str, Option("Judges the program's end: a command, or module:function.", "COMMAND")] = ""
    ignored: Annotated[
        tuple[str, ...], Option("Lines of output not to be compared (repeatable).", "REGEX", flag="--ignore-output")
    ] = ()
    spread: Annotated[
        int | None, Option("Judge by so many golden runs with other seeds [by the program's accuracy].", "N", least=3)
    ] = None
    spread_with: Annotated[str, Option("Words that give PROGRAM a seed: '--seed {}' [its own, + 1 …].", "WORDS")] = ""
    metric: Annotated[
        str, Option("With --spread: the number that counts: in what PROGRAM prints, or module:function's [its loss].", "REGEX")
    ] = ""

    def of_end(self, after: int | None) -> str:
        """Return the option that judges the program's end, or an empty text. Raises UsageError if trials do not reach
        that end, for options that need --spread without it, and for invalid patterns.
        """
        from detrain.campaign.judging.check import is_function

        of_end = f"--check {self.check!r}" if self.check else f"--metric {self.metric!r}" if is_function(self.metric) else ""
        if of_end and after is not None:
            raise UsageError(
                f"{of_end} judges the program's end, and --after {after} ends trials before it",
                "leave out --after, or judge a horizon by the outcome",
            )
        for pattern in self.ignored:
            _require_pattern("--ignore-output", pattern)
        if self.spread is None and (self.spread_with or self.metric):
            raise UsageError("--spread-with and --metric are about golden runs with other seeds", "add --spread 8")
        if self.spread_with and "{}" not in self.spread_with:
            raise UsageError(f"--spread-with {self.spread_with!r} has no place for a seed", "write {} there: '--seed {}'")
        _require_pattern("--metric", self.metric)
        return of_end


@program_command
def plan(
    *,
    chosen: Chosen,
    number: Number,
    population: Population,
    after: After = None,
    hits: Hits,
    phases: Phases,
    threads: Annotated[int, Option("Of each worker: bits depend on it.", least=1)] = 1,
    guard: Guarded = False,
    is_inference: OfInference = False,
    ranges: Annotated[bool, Option("Clip what PyTorch's modules give to what they give without a fault (Ranger).")] = False,
    time_limit: TrialLimit = None,
    judging: Judging,
    thresholds: Thresholds = (),
) -> int:
    """Write the plan of a campaign: which faults, in which steps, and how many.

    The plan of a seed with more trials begins with the one with fewer. Give the same command with a larger -n, and the
    campaign goes on.

    \b
    Example:
      detrain campaign plan --half-width 1 --after 10 train.py
    """
    from detrain.campaign.engine.header import Header, make, make_both
    from detrain.campaign.outcomes import read_thresholds

    population.check(number)
    of_end = judging.of_end(after)
    after = 1 if is_inference and after is None else after
    header = Header(
        program=chosen.program,
        is_module=chosen.is_module,
        arguments=chosen.arguments,
        sources={},
        environment={},
        key="",
        threads=threads,
        limit_s=time_limit,
        has_guard=guard,
        is_inference=is_inference,
        has_ranges=ranges,
        seed=population.seed,
        count=number.of_trials(),
        after=after,
        thresholds=read_thresholds(thresholds),
        check=judging.check,
        ignored=judging.ignored,
        coming=hits.coming(after, population),
        spread=judging.spread or 0,
        spread_with=judging.spread_with,
        metric=judging.metric,
        two_phase=phases.wanted(after, of_end),
    )
    header = population.given_to(header, Path(chosen.home))
    made = (make if header.two_phase is None else make_both)(header, Path(chosen.home), chosen.name)
    if chosen.as_json:
        print_json(made.header)
    else:
        _show(made)
    return 0


_SHOWN = 6


def _show(made: Campaign) -> None:
    header, phases = made.header, made.header.two_phase
    click.echo(f"{header.count:,} trials, plan {header.digest}, in {made.folder}")
    if phases is not None:
        horizon = f"to {phases.horizon} steps" if phases.horizon is not None else "to the program's end"
        click.echo(f"all run {phases.first} steps, {phases.trials:,} of them {horizon}")
    if header.sampled is not None:
        strata_of = header.sampled.allocation
        click.echo(f"{len(strata_of)} strata: " + ", ".join(f"{label} {share:.1%}" for label, share in strata_of[:_SHOWN]))
        if len(strata_of) > _SHOWN:
            click.echo(f"  and {len(strata_of) - _SHOWN} more: --json lists them")


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _require_pattern(option: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{option} {pattern!r} is no regular expression: {error}", "see Python's module re") from error


_USUAL, _HALF, _WHOLE = 1000, 50, 100
_FIRST = 3
