"""`detrain campaign run | status`: workers run the missing trials; the progress of a campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from detrain.base.errors import UsageError
from detrain.base.options import Option
from detrain.cli.campaign.common import Chosen
from detrain.cli.shared.options import Address, program_command
from detrain.cli.shared.printing import console, print_json

if TYPE_CHECKING:
    from detrain.campaign.engine.driver import CampaignProgress
    from detrain.campaign.engine.header import Campaign


@program_command
def run(
    *,
    chosen: Chosen,
    workers: Annotated[int | None, Option("Workers at a time [one a core; ray: one a CPU of the cluster].", least=1)] = None,
    engine_name: Annotated[
        Literal["auto", "process", "ray", "slurm", "submitit-local"],
        Option("auto: workers here, many trials a process; process: each trial in one of its own.", flag="--engine"),
    ] = "auto",
    address: Address = None,
    stop_at: Annotated[
        float | None,
        Option(
            "Stop at a planned look that knows the share of harmful trials so near: 1 for ± 1 %.",
            "PERCENT",
            type=click.FloatRange(0, 50, min_open=True, max_open=True),
        ),
    ] = None,
    confidence: Annotated[float, Option("With --stop-at, in percent.", least=1, most=99.99)] = 95.0,
    no_early_end: Annotated[bool, Option("Run trials on that have come to the golden run's state: for the same rows.")] = False,
) -> int:
    """Run what is missing of a campaign. It may be killed at any moment, and goes on where it was, on any engine."""
    from detrain.campaign.engine.choice import made
    from detrain.campaign.engine.driver import Driver, StopAt
    from detrain.campaign.engine.header import numbers_of_second, second_of
    from detrain.campaign.engine.work import How

    campaign = chosen.campaign()
    engine = made(engine_name, workers, address, campaign.folder)
    if stop_at is not None and campaign.header.two_phase is not None:
        raise UsageError("a campaign of two phases has no planned looks: what is run on is known at its end", "leave out --stop-at")
    with _shown(as_json=chosen.as_json) as tell:
        enough = StopAt(stop_at / 100, confidence / 100) if stop_at is not None else None
        how = How(in_one=engine_name != "process", ends_early=not no_early_end)
        progress = Driver(campaign, engine, tell, how=how, stop_at=enough).run()
        later, second = second_of(campaign), None
        numbers = numbers_of_second(campaign) if later is not None else None
        if later is not None and numbers is not None:
            engine = made(engine_name, workers, address, later.folder)
            second = later, Driver(later, engine, tell, how=how, numbers=numbers).run()
    _say(campaign, progress, second, as_json=chosen.as_json, has_digest=True)
    return 0


@program_command
def status(*, chosen: Chosen) -> int:
    """Say how far a campaign is, also while it runs."""
    from detrain.campaign.engine.driver import progress_of
    from detrain.campaign.engine.header import numbers_of_second, second_of

    campaign = chosen.campaign(must_be_as_now=False)
    later = second_of(campaign)
    numbers = numbers_of_second(campaign) if later is not None else None
    second = (later, progress_of(later, numbers=numbers)) if later is not None and numbers is not None else None
    _say(campaign, progress_of(campaign), second, as_json=chosen.as_json, has_digest=False)
    return 0


@click.command(hidden=True)
@click.option("--engine", "engine_name", type=click.Choice(["auto", "process"]), default="auto")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("lease", type=click.Path(path_type=Path, exists=True))
@click.argument("shard")
@click.option("--no-early-end", is_flag=True)
def work(folder: Path, lease: Path, shard: str, engine_name: str, no_early_end: bool) -> int:
    """Do the trials of a lease: what engines start."""
    from detrain.campaign.engine.work import How, do_lease

    do_lease(folder, lease, shard, How(in_one=engine_name != "process", ends_early=not no_early_end))
    return 0


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[CampaignProgress], None]]:
    """Show a progress bar if the output is a terminal; yield the function that updates it."""
    printer = console()
    if as_json or not printer.is_terminal:
        yield lambda _progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), console=printer) as bar:
        task = bar.add_task("", total=None, told="")

        def tell(progress: CampaignProgress) -> None:
            bar.update(task, total=progress.count, completed=progress.done + progress.unfired, told=_told(progress))

        yield tell


def _told(progress: CampaignProgress) -> str:
    left = progress.left_s
    rate = f"{progress.rate:,.0f}/h" + (f", {left / 3600:.1f} h left" if left is not None and left > 0 else "")
    most = sorted(progress.shares.items(), key=lambda pair: -pair[1])[:3]
    return "; ".join([rate, *(f"{name} {count / max(progress.done, 1):.1%}" for name, count in most)])


_Phase = tuple["Campaign", "CampaignProgress"]


def _say(campaign: Campaign, progress: CampaignProgress, second: _Phase | None, *, as_json: bool, has_digest: bool) -> None:
    if as_json:
        parts = _parts(campaign, progress, has_digest=has_digest)
        more = {} if second is None else {"second": _parts(*second, has_digest=has_digest)}
        print_json(parts | more)
        return
    two_phase = campaign.header.two_phase
    if two_phase is not None:
        click.echo(f"first phase, {two_phase.first} steps a trial:")
    _say_phase(campaign, progress, has_digest=has_digest)
    if two_phase is not None:
        horizon = "to the program's end" if two_phase.horizon is None else f"{two_phase.horizon} steps a trial"
        click.echo(f"second phase, {horizon}" + (": it begins when the first is over" if second is None else ":"))
    if second is not None:
        _say_phase(*second, has_digest=has_digest)


def _parts(campaign: Campaign, progress: CampaignProgress, *, has_digest: bool) -> dict[str, object]:
    return {
        "count": progress.count,
        "done": progress.done,
        "unfired": progress.unfired,
        "shares": progress.shares,
        "an_hour": round(progress.rate),
        "seconds": round(progress.seconds, 3),
        "plan": campaign.plan.digest,
        "digest": _digest(campaign) if has_digest else "",
        "look": progress.look,
    }


def _digest(campaign: Campaign) -> str:
    from detrain.campaign.engine.ledger import Ledgers

    return Ledgers(campaign.ledgers, campaign.plan.digest).digest()


def _say_phase(campaign: Campaign, progress: CampaignProgress, *, has_digest: bool) -> None:
    missing = progress.count - progress.done - progress.unfired
    click.echo(f"{progress.done:,} of {progress.count:,} trials are done" + (f", {missing:,} missing" if missing else ""))
    if progress.unfired:
        click.echo(f"{progress.unfired:,} drawn faults did not fire and are not counted")
    if progress.new and progress.seconds:
        click.echo(f"{progress.new:,} in {progress.seconds:.0f} s, {progress.rate:,.0f} an hour")
    for outcome, count in sorted(progress.shares.items(), key=lambda pair: -pair[1]):
        click.echo(f"  {outcome:40} {count:>9,}  {count / max(sum(progress.shares.values()), 1):.1%}")
    look = progress.look
    if look is not None and look.share is not None:
        low, high = look.interval
        click.echo(
            f"stopped at the look after {look.trials:,} trials: {look.share:.2%} are harmful, {low:.2%} to {high:.2%};"
            " without --stop-at it goes on"
        )
    if has_digest:
        click.echo(f"digest {_digest(campaign)}")
