"""`detrain campaign plan`: which faults, in which steps, and how many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from detrain.base.errors import UsageError
from detrain.base.options import Option
from detrain.cli.campaign.common import Chosen
from detrain.cli.shared.fault_options import (
    After,
    Among,
    AtOnce,
    DrawnBy,
    OfInference,
    OfStage,
    Shares,
    Thresholds,
    TrialLimit,
    require_several,
)
from detrain.cli.shared.options import program_command
from detrain.cli.shared.printing import print_json

if TYPE_CHECKING:
    from detrain.campaign.engine.header import Header, TwoPhase
    from detrain.faults.population.facts import Coming
    from detrain.faults.population.frame import Selection


_IOV_MODELS = "FLIP:1,ADJ:2,RANDOM,ZERO"


@program_command
def plan(
    *,
    chosen: Chosen,
    count: Annotated[int | None, Option("How many trials [as the half-width says, or 1000].", flag="-n", least=1)] = None,
    half_width: Annotated[float | None, Option("So near shall a share be known: 1 for ± 1 %.", "PERCENT")] = None,
    confidence: Annotated[float, Option("With --half-width.", "PERCENT")] = 95.0,
    seed: DrawnBy = 0,
    mode: Annotated[
        Literal["IOV", "IOA", "RF", "ISCA"],
        Option("IOV: values of ops. IOA: addresses. RF: memory between steps. ISCA: as `detrain random` draws."),
    ] = "IOV",
    models: Annotated[
        str | None, Option(f"Fault models [{_IOV_MODELS}; IOA, RF: the first two; ISCA: the 18 published].", "A,B,…")
    ] = None,
    groups: Annotated[str | None, Option("SASSIFI's groups of ops, by name or number [all, each output once].", "A,B,…")] = None,
    rule: Annotated[
        Literal["elements", "work", "bytes", "site"], Option("What makes an output likely to be hit.", flag="--by")
    ] = "elements",
    strata: Annotated[str, Option("Each gets its share of trials.", "A,B,…")] = "stage,group",
    pilot: Annotated[str | None, Option("Share the trials out by what this campaign has found (Neyman).", "NAME")] = None,
    shares: Annotated[Shares, Option("Of ISCA models.")] = "uniform",
    pattern: Annotated[
        str, Option("Sites to draw from [all; ISCA: matrix products].", "PATTERN", flag="--site", shows_default=False)
    ] = "*",
    stage: OfStage = None,
    epochs: Annotated[str | None, Option("ISCA: only steps of the epochs from A on, before B.", "A:B")] = None,
    after: After = None,
    steps: Annotated[int | None, Option("How many steps in a row a fault hits [1].", "N", least=1)] = None,
    permanent: Annotated[bool, Option("A fault hits all steps from the first on.")] = False,
    duty: Annotated[
        float | None, Option("An intermittent fault: each step behind the first is hit with this chance.", "SHARE")
    ] = None,
    at_once: AtOnce = 1,
    among: Among = "tensor",
    second: Annotated[int | None, Option("All trials run --first steps, N of them on.", "N", flag="--two-phase", least=1)] = None,
    first: Annotated[int | None, Option("Steps of the first phase [3].", "N", least=1)] = None,
    threads: Annotated[int, Option("Of each worker: bits depend on it.", least=1)] = 1,
    guard: Annotated[bool, Option("Look for the faults, as `detrain run --guard detect` does.")] = False,
    is_inference: OfInference = False,
    ranges: Annotated[bool, Option("Clip what PyTorch's modules give to what they give without a fault (Ranger).")] = False,
    time_limit: TrialLimit = None,
    listed: Annotated[Path | None, Option("The faults of a list of SASSIFI's or NVBitFI's.", flag="--list")] = None,
    list_of: Annotated[Literal["sassifi", "nvbitfi"], Option("Whose list.")] = "sassifi",
    check: Annotated[str, Option("Judges the program's end: a command, or module:function.", "COMMAND")] = "",
    ignored: Annotated[
        tuple[str, ...], Option("Lines of output not to be compared (repeatable).", "REGEX", flag="--ignore-output")
    ] = (),
    spread: Annotated[
        int | None, Option("Judge by so many golden runs with other seeds [by the program's accuracy].", "N", least=3)
    ] = None,
    spread_with: Annotated[str, Option("Words that give PROGRAM a seed: '--seed {}' [its own, + 1 …].", "WORDS")] = "",
    metric: Annotated[
        str, Option("With --spread: the number that counts: in what PROGRAM prints, or module:function's [its loss].", "REGEX")
    ] = "",
    thresholds: Thresholds = (),
) -> int:
    """Write the plan of a campaign: which faults, in which steps, and how many.

    The plan of a seed with more trials begins with the one with fewer. Give the same command with a larger -n, and the
    campaign goes on.

    \b
    Example:
      detrain campaign plan --half-width 1 --after 10 train.py
    """
    import msgspec

    from detrain.campaign.engine.header import Header, Sampled, make, make_both, shared_out_by
    from detrain.campaign.judging.check import is_function
    from detrain.campaign.outcomes import read_thresholds
    from detrain.campaign.planning.drawn_plan import Drawn
    from detrain.faults.models import model_named

    if mode != "ISCA" and (epochs is not None or shares != "uniform"):
        raise UsageError("--epochs and --shares are of the mode ISCA", "add --mode ISCA, or leave them out")
    if mode == "ISCA" and (groups is not None or pilot is not None or rule != "elements"):
        raise UsageError("--groups, --by and --pilot are of the other modes", "give --mode IOV, IOA or RF")
    of_end = f"--check {check!r}" if check else f"--metric {metric!r}" if is_function(metric) else ""
    _require_judgeable(of_end, after, ignored)
    _require_spread(spread, spread_with, metric)
    after = 1 if is_inference and after is None else after
    others: dict[str, object]
    others = {"-n": count, "--half-width": half_width, "--models": models, "--groups": groups, "--pilot": pilot, "--epochs": epochs}
    _require_only_listed(listed, others)
    usual = {"ISCA": "", "IOV": _IOV_MODELS}.get(mode, "FLIP:1,ADJ:2")
    names = tuple(part.strip() for part in (models if models is not None else usual).split(",") if part.strip())
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
        seed=seed,
        count=_count(count, half_width, confidence),
        after=after,
        thresholds=read_thresholds(thresholds),
        check=check,
        ignored=ignored,
        coming=_coming(steps, duty, (at_once, among), after, mode, is_permanent=permanent, is_listed=listed is not None),
        spread=spread or 0,
        spread_with=spread_with,
        metric=metric,
        two_phase=_two_phase(first, second, after, of_end),
    )
    if listed is not None:
        header = _of_list(header, listed, list_of)
    elif mode == "ISCA":
        for name in names:
            model_named(name)
        drawn = Drawn(models=names, shares=shares, pattern=pattern, stage=stage, epochs=epochs)
        header = msgspec.structs.replace(header, drawn=drawn)
    else:
        wanted = {"seed": seed, "modes": [mode], "groups": _parts(groups), "models": names, "rule": rule, "strata": _parts(strata)}
        sampled = Sampled(choice=_choice({**wanted, "site": pattern, "stage": stage or ""}))
        if pilot is not None:
            sampled = shared_out_by(header, sampled, Path(chosen.home), pilot)
        header = msgspec.structs.replace(header, sampled=sampled)
    made = (make if second is None else make_both)(header, Path(chosen.home), chosen.name)
    if chosen.as_json:
        print_json(made.header)
        return 0
    click.echo(f"{made.header.count:,} trials, plan {made.header.digest}, in {made.folder}")
    if made.header.two_phase is not None:
        horizon = f"to {after} steps" if after is not None else "to the program's end"
        click.echo(f"all run {made.header.two_phase.first} steps, {second:,} of them {horizon}")
    if made.header.sampled is not None:
        strata_of = made.header.sampled.allocation
        click.echo(f"{len(strata_of)} strata: " + ", ".join(f"{label} {share:.1%}" for label, share in strata_of[:6]))
        if len(strata_of) > _SHOWN:
            click.echo(f"  and {len(strata_of) - _SHOWN} more: --json lists them")
    return 0


_SHOWN = 6


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _require_only_listed(listed: Path | None, others: dict[str, object]) -> None:
    """Raise UsageError where a list is given, and options by which others would be drawn."""
    given = ", ".join(name for name, value in others.items() if value is not None)
    if listed is not None and given:
        raise UsageError(f"--list {str(listed)!r} says which faults, and {given} would draw others", "leave one of them out")


def _of_list(header: Header, path: Path, tool: Literal["sassifi", "nvbitfi"]) -> Header:
    """Return a header with the faults of a list. Raises FaultInvalid for what is none."""
    import msgspec

    from detrain.campaign.engine.header import Listing
    from detrain.faults.exchange.lists import parse_name, read_list

    listing = Listing(name=parse_name(path), tool=tool, lines=tuple(read_list(path)))
    return msgspec.structs.replace(header, listing=listing, count=len(listing.lines))


def _require_judgeable(of_end: str, after: int | None, ignored: tuple[str, ...]) -> None:
    """Raise UsageError for a check of what is not there, and for patterns that are none."""
    if of_end and after is not None:
        raise UsageError(
            f"{of_end} judges the program's end, and --after {after} ends trials before it",
            "leave out --after, or judge a horizon by the outcome",
        )
    for pattern in ignored:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--ignore-output {pattern!r} is no regular expression: {error}", "see Python's module re") from error


def _coming(
    steps: int | None,
    duty: float | None,
    together: tuple[int, Literal["tensor", "step"]],
    after: int | None,
    mode: str,
    *,
    is_permanent: bool,
    is_listed: bool,
) -> Coming:
    """Return how faults come. Raises UsageError where the options do not go together."""
    from detrain.faults.population.facts import ONCE, Coming

    if is_permanent and steps is not None:
        raise UsageError(f"--permanent hits all steps, --steps {steps} not", "give one of them")
    if duty is not None and not 0 < duty < 1:
        raise UsageError(f"--duty {duty} is no chance of a step", "give a share between 0 and 1, such as 0.1")
    if duty is not None and steps == 1:
        raise UsageError("--duty is of faults in several steps, --steps 1 is one", "leave out --steps: all steps may be hit then")
    if steps is not None and after is not None and steps > after:
        raise UsageError(f"--steps {steps} hits more than the {after} steps of a trial", "give fewer --steps, or a later --after")
    at_once, among = together
    require_several(at_once, among)
    if at_once > 1 and mode == "IOA":
        raise UsageError("--at-once is of values, and a wrong address (mode IOA) is one write", "give --mode IOV, RF or ISCA")
    several = 0 if is_permanent or (duty is not None and steps is None) else steps or 1
    coming = Coming(steps=several, duty=1.0 if duty is None else duty, at_once=at_once, among=among)
    if is_listed and coming != ONCE:
        raise UsageError("a --list has one fault in one step a line", "leave out --steps, --permanent, --duty and --at-once")
    return coming


def _require_spread(spread: int | None, words: str, metric: str) -> None:
    """Raise UsageError for what goes with golden runs of other seeds where there are none, and for no pattern."""
    if spread is None and (words or metric):
        raise UsageError("--spread-with and --metric are about golden runs with other seeds", "add --spread 8")
    if words and "{}" not in words:
        raise UsageError(f"--spread-with {words!r} has no place for a seed", "write {} there: '--seed {}'")
    try:
        re.compile(metric)
    except re.error as error:
        raise UsageError(f"--metric {metric!r} is no regular expression: {error}", "see Python's module re") from error


def _two_phase(first: int | None, second: int | None, after: int | None, of_end: str) -> TwoPhase | None:
    """Return what is wanted of two phases. Raises UsageError where that is none."""
    from detrain.campaign.engine.header import TwoPhase

    if second is None:
        if first is not None:
            raise UsageError(f"--first {first} is of a campaign of two phases", "add --two-phase N")
        return None
    first = _FIRST if first is None else first
    if after is not None and after <= first:
        raise UsageError(f"--after {after} ends trials in their first phase of {first} steps", "give a later horizon")
    if of_end:
        raise UsageError(f"{of_end} judges the program's end, which the first phase does not see", "leave one out")
    return TwoPhase(first=first, trials=second, horizon=after)


def _choice(wanted: dict[str, object]) -> Selection:
    import msgspec

    from detrain.faults.population.frame import PARTS, Selection, check_choice

    try:
        choice = msgspec.convert(wanted, type=Selection)
    except msgspec.ValidationError as error:
        raise UsageError(f"--strata {wanted['strata']}: {error}", f"give some of {', '.join(PARTS)}") from error
    check_choice(choice)
    return choice


def _count(count: int | None, half_width: float | None, confidence: float) -> int:
    """Return how many trials are wanted."""
    if count is not None and half_width is not None:
        raise UsageError(f"-n {count} and --half-width {half_width} both say how many trials", "give one of them")
    if half_width is None:
        return count if count is not None else _USUAL
    if not 0 < half_width < _HALF or not 0 < confidence < _WHOLE:
        raise UsageError(f"--half-width {half_width} --confidence {confidence}", "give percent: 1 and 95, for example")
    from detrain.faults.statistics.estimates import trials_for

    return trials_for(half_width / _WHOLE, confidence / _WHOLE)


_USUAL, _HALF, _WHOLE = 1000, 50, 100
_FIRST = 3
