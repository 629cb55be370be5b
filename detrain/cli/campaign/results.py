"""`detrain campaign report | record | export`: results of a campaign, one of its trials, and files of other tools."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from detrain.base import messages
from detrain.base.errors import FaultNotFired, UsageError
from detrain.base.options import Option
from detrain.cli.campaign.common import Chosen
from detrain.cli.shared.options import program_command
from detrain.cli.shared.printing import print_json, replay_command

if TYPE_CHECKING:
    from detrain.campaign.engine.header import Campaign
    from detrain.faults.population.trial_row import TrialRow
    from detrain.reports.campaign.about import About
    from detrain.reports.campaign.two_phase import Later


@program_command
def report(
    *,
    chosen: Chosen,
    html: Annotated[Path | None, Option("Write the report as one page.")] = None,
    parquet: Annotated[Path | None, Option("Write all trials as a table.")] = None,
    compare: Annotated[str | None, Option("Beside another campaign on the same plan (with a guard, say).", "NAME")] = None,
    published: Annotated[Path | None, Option("Shares of a publication (TOML), to be shown beside.")] = None,
    confidence: Annotated[float, Option("Of intervals, in percent.", least=1, most=99.99)] = 95.0,
) -> int:
    """Say what came of a campaign, with intervals; at any time, of the trials that are done.

    \b
    Example:
      detrain campaign report --html campaign.html train.py
    """
    from detrain.reports.campaign.about import read_published
    from detrain.reports.campaign.columns import write_parquet
    from detrain.reports.campaign.page import json_of, lines_of, write_page
    from detrain.reports.campaign.summary import summarize
    from detrain.reports.pictures import check_writable

    check_writable(html)
    check_writable(parquet)
    campaign = chosen.campaign(must_be_as_now=False)
    rows = _rows(campaign)
    about = _about(campaign, chosen.program, {"published": read_published(published)} if published is not None else {})
    other = None
    if compare is not None:
        _require_one_phase(campaign, "compared")
        beside = chosen.campaign(compare, must_be_as_now=False)
        _require_same_faults(campaign, beside, compare)
        other = compare, _rows(beside)
    later = _later(campaign, rows, about, confidence / 100)
    summary = summarize(rows, about, other=other, confidence=confidence / 100, later=later)
    if html is not None:
        write_page(html, summary)
        messages.say(f"the report is {html}")
    if parquet is not None:
        write_parquet(parquet, rows)
        messages.say(f"the table of {len(rows):,} trials is {parquet}")
    click.echo(json_of(summary).decode() if chosen.as_json else "\n".join(lines_of(summary)))
    return 0


@program_command
def record(
    *,
    chosen: Chosen,
    number: Annotated[int, Option("Of the trial.", least=0)],
    out: Annotated[Path | None, Option("The fault record to write [in the campaign's folder].")] = None,
) -> int:
    """Do one trial again in a process of its own, and write its record: `detrain replay` proves that."""

    from detrain.campaign.engine.header import second_of
    from detrain.campaign.outcomes import outcome_of
    from detrain.campaign.trial_record import record_of
    from detrain.campaign.trials_done import do_trials
    from detrain.faults.record import write_record
    from detrain.reports.pictures import check_writable

    check_writable(out)
    campaign = chosen.campaign()
    told = campaign.plan.told(number)
    if told:
        raise UsageError(f"nothing is run of trial {number}: {told}", "give another number")
    campaign = second_of(campaign) or campaign  # its trials go to the horizon
    ((facts, trial),) = do_trials(campaign.subject, campaign.plan, [number], campaign.golden, in_one=False)
    if isinstance(trial, str):
        raise FaultNotFired(f"the fault of trial {number} does not fire: {trial}", "give another number")
    found = record_of(campaign.subject, trial, facts.model, campaign.header.seed, campaign.header.thresholds)
    path = out or campaign.folder / f"trial-{number:06d}.json"
    write_record(path, found)
    if chosen.as_json:
        print_json(found)
    else:
        outcome = found.outcome
        if campaign.spread is not None:  # the record itself is judged without the spread
            outcome = outcome_of(trial.golden, trial.done, trial.experiment.at, spread=campaign.spread)
        click.echo(f"trial {number}: {facts.model} in {facts.site}: {outcome}")
        command = replay_command(path, chosen.program, chosen.arguments, home=chosen.home, is_module=chosen.is_module)
        messages.say(f"the record is {path}; `{command}` runs it again")
    return 0


@program_command
def export(
    *,
    chosen: Chosen,
    tool: Annotated[Literal["sassifi", "nvbitfi"], Option("Whose files.")] = "sassifi",
    out: Annotated[Path, Option("Folder of the files.", type=click.Path(path_type=Path, file_okay=False))],
) -> int:
    """Write a campaign as the files that SASSIFI's or NVBitFI's scripts read: profile, lists, results."""
    import msgspec

    from detrain.campaign.engine.header import profile_for
    from detrain.faults.exchange.lists import export_tree
    from detrain.faults.population.plan import SampledPlan
    from detrain.faults.population.trial_row import OUTSIDE

    campaign = chosen.campaign(must_be_as_now=False)
    _require_one_phase(campaign, "exported")
    if campaign.header.drawn is not None:
        raise UsageError("a campaign in the mode ISCA has no profile to be written", "plan one in the mode IOV or IOA")

    def injection_of(row: TrialRow) -> Any:
        return campaign.plan.trial(row.number)[1].injection

    if isinstance(campaign.plan, SampledPlan) and "RF" in campaign.plan.choice.modes:
        raise UsageError("a campaign in the mode RF hits memory, which is no output of an op", "plan one in the mode IOV or IOA")
    rows, app = [row for row in _rows(campaign) if row.outcome != OUTSIDE], campaign.subject.program.name
    files = export_tree(out, profile_for(campaign.subject), rows, tool=tool, app=app, injection_of=injection_of)
    if chosen.as_json:
        click.echo(msgspec.json.encode([str(file) for file in files]).decode())
    else:
        click.echo(f"{len(files)} files in {out}; {out / 'README.txt'} says what to do with them")
    return 0


def _rows(campaign: Campaign) -> list[TrialRow]:
    from detrain.campaign.engine.ledger import Ledgers

    count = campaign.plan.count
    rows = [row for row in Ledgers(campaign.ledgers, campaign.plan.digest).rows() if row.number < count]
    if not rows:
        raise UsageError("no trial of this campaign is done yet", "run it: detrain campaign run PROGRAM")
    return rows


def _require_one_phase(campaign: Campaign, what: str) -> None:
    """Raise UsageError for a campaign of two phases: it has no single table of results."""
    if campaign.header.two_phase is not None:
        raise UsageError(f"a campaign of two phases has no one table of results to be {what}", "plan it without --two-phase")


def _later(campaign: Campaign, rows: list[TrialRow], about: About, confidence: float) -> Later | None:
    """Return the estimates of a campaign's second phase, if it has one and the first phase is over."""
    from detrain.campaign.engine.header import numbers_of_second, second_of
    from detrain.campaign.engine.ledger import Ledgers
    from detrain.reports.campaign.two_phase import later_of

    two_phase, second = campaign.header.two_phase, second_of(campaign)
    chosen = numbers_of_second(campaign) if second is not None else None
    if second is None or chosen is None or two_phase is None:
        return None
    ledgers = Ledgers(second.ledgers, second.plan.digest)
    return later_of(
        rows,
        list(ledgers.rows()),
        chosen,
        about.strata,
        steps=(two_phase.first, two_phase.horizon),
        unfired=len(ledgers.unfired().keys() & set(chosen)),
        confidence=confidence,
    )


def _about(campaign: Campaign, program: str, known: dict[str, Any]) -> About:
    from importlib.metadata import version

    from detrain.campaign.engine.ledger import Ledgers
    from detrain.faults.population.plan import SampledPlan
    from detrain.reports.campaign.about import About, about_plan

    header, ledgers = campaign.header, Ledgers(campaign.ledgers, campaign.plan.digest)
    said = {
        "name": campaign.folder.name.removeprefix("campaign-"),
        "table_digest": ledgers.digest(),
        "version": version("detrain"),
        "environment": header.environment,
        "not_fired": len(ledgers.unfired()),
        "lost": sum(ledgers.lost().values()),
        "replay": shlex.join(["detrain", "campaign", "record", "--number", "{number}", program, *header.arguments]),
        **known,
    }
    if isinstance(campaign.plan, SampledPlan):
        return about_plan(campaign.plan, **said)
    drawn, listing = header.drawn, header.listing
    options = {"mode": "ISCA", "models": ", ".join(drawn.models) or "the 18 published", "shares": drawn.shares} if drawn else {}
    if listing is not None:
        options = {"list": listing.name.list_name, "of": listing.tool}
    return About(
        program=campaign.subject.program.name,
        arguments=header.arguments,
        planned=header.count,
        seed=header.seed,
        plan_digest=campaign.plan.digest,
        horizon=header.after,
        options=options,
        **said,
    )


def _require_same_faults(one: Campaign, other: Campaign, name: str) -> None:
    """Raise UsageError unless the trials of two campaigns are the same faults, so that they can be paired."""
    for number in range(min(one.plan.count, other.plan.count, 20)):
        (_, first), (_, second) = one.plan.trial(number), other.plan.trial(number)
        if (first.injection, first.at) != (second.injection, second.at):
            raise UsageError(f"trial {number} of {name!r} is another fault", "plan both with the same options and seed")
