"""`detrain campaign`: very many faults, drawn by a plan, run by workers, kept in ledgers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from detrain.base.errors import UsageError
from detrain.cli.shared.options import PROGRAM_SETTINGS, SECONDS, home_option, program_arguments, threshold_option
from detrain.cli.shared.printing import console
from detrain.faults.sites import STAGES

if TYPE_CHECKING:
    from detrain.campaign.engine.api import Engine
    from detrain.campaign.engine.driver import Progress
    from detrain.campaign.engine.header import Campaign
    from detrain.faults.outcome_classes import Thresholds

ENGINES = ("auto", "process", "ray", "slurm", "submitit-local")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Plan very many faults, run them, and say what came of them.

    \b
    Example:
      detrain campaign plan -n 20000 --after 3 train.py
      detrain campaign run train.py
      detrain campaign status train.py
    """


def _of_campaign(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all subcommands have."""
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(program_arguments(function))
    function = click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")(function)
    function = click.option("--name", default="campaign", show_default=True, callback=_name, help="Of the campaign.")(function)
    return home_option("Folder of the checkpoints")(function)


def _name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"--name {name!r} is no name of a folder", "write letters, digits and - alone")
    return name


@command.command(context_settings=PROGRAM_SETTINGS)
@_of_campaign
@click.option("-n", "count", type=click.IntRange(1), default=1000, show_default=True, help="How many trials.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--models", metavar="A,B,…", help="Fault models to draw from [the 18 published ones].")
@click.option("--shares", type=click.Choice(["uniform", "fidelity"]), default="uniform", show_default=True, help="Of the models.")
@click.option("--site", "pattern", default="*", metavar="PATTERN", help="Sites to draw from [convolutions, matrix products].")
@click.option("--stage", type=click.Choice(STAGES), help="Only sites of this stage.")
@click.option("--epochs", metavar="A:B", help="Only steps of the epochs from A on, before B.")
@click.option("--after", type=click.IntRange(1), metavar="N", help="Steps to run from the fault on [to the program's end].")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each worker: bits depend on it.")
@click.option("--guard", is_flag=True, help="Look for the faults, as `detrain run --guard detect` does.")
@click.option("--time-limit", type=SECONDS, default=3600.0, metavar="S", help="A longer trial hangs [3600].")
@threshold_option()
def plan(
    home: str,
    name: str,
    as_json: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
    count: int,
    seed: int,
    models: str | None,
    shares: str,
    pattern: str,
    stage: str | None,
    epochs: str | None,
    after: int | None,
    threads: int,
    guard: bool,
    time_limit: float,
    thresholds: Thresholds,
) -> int:
    """Write the plan of a campaign: which faults, in which steps.

    The plan of a seed with more trials begins with the one with fewer. Give the same command with a larger -n, and the
    campaign goes on.
    """
    from detrain.campaign.engine.header import Drawn, Header, make

    names = tuple(models.split(",")) if models else ()
    header = Header(
        program=program,
        is_module=is_module,
        arguments=arguments,
        sources={},
        environment={},
        key="",
        threads=threads,
        limit_s=time_limit,
        has_guard=guard,
        seed=seed,
        count=count,
        after=after,
        thresholds=thresholds,
        drawn=Drawn(models=names, shares=shares, pattern=pattern, stage=stage, epochs=epochs),
    )
    made = make(header, Path(home), name)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made.header), indent=1).decode())
    else:
        click.echo(f"{count} trials, plan {made.header.digest}, in {made.folder}")
    return 0


@command.command(context_settings=PROGRAM_SETTINGS)
@_of_campaign
@click.option("--workers", type=click.IntRange(1), help="Workers at a time [one a core; ray: one a CPU of the cluster].")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="auto: workers here, many trials a process; process: each trial in one of its own.",
)
@click.option("--address", help="Of a Ray cluster [one is started here].")
def run(
    home: str,
    name: str,
    as_json: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
    workers: int | None,
    engine_name: str,
    address: str | None,
) -> int:
    """Run what is missing of a campaign. It may be killed at any moment, and goes on where it was, on any engine."""
    from detrain.campaign.engine.driver import Driver

    campaign = _found(home, name, program, arguments, is_module=is_module)
    engine = _engine(engine_name, workers, address, campaign.folder)
    with _shown(as_json=as_json) as tell:
        progress = Driver(campaign, engine, tell, in_one=engine_name != "process").run()
    _say(campaign, progress, as_json=as_json, has_digest=True)
    return 0


@command.command(context_settings=PROGRAM_SETTINGS)
@_of_campaign
def status(home: str, name: str, as_json: bool, is_module: bool, program: str, arguments: tuple[str, ...]) -> int:
    """Say how far a campaign is, also while it runs."""
    from detrain.campaign.engine.driver import progress_of

    campaign = _found(home, name, program, arguments, is_module=is_module)
    _say(campaign, progress_of(campaign), as_json=as_json, has_digest=False)
    return 0


@command.command(hidden=True)
@click.option("--engine", "engine_name", type=click.Choice(["auto", "process"]), default="auto")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("lease", type=click.Path(path_type=Path, exists=True))
@click.argument("shard")
def work(folder: Path, lease: Path, shard: str, engine_name: str) -> int:
    """Do the trials of a lease: what engines start."""
    from detrain.campaign.engine.work import do_lease

    do_lease(folder, lease, shard, in_one=engine_name != "process")
    return 0


def _found(home: str, name: str, program: str, arguments: tuple[str, ...], *, is_module: bool) -> Campaign:
    from detrain.campaign.engine.header import find, load
    from detrain.launcher.program import Program

    return load(find(Program.find(program, is_module=is_module), arguments, Path(home), name), arguments)


def _engine(name: str, workers: int | None, address: str | None, folder: Path) -> Engine:
    if address is not None and name != "ray":
        raise UsageError(f"--address {address!r} is of a Ray cluster, and the engine is {name}", "add --engine ray")
    if name == "ray":
        from detrain.campaign.engine.ray_cluster import RayCluster

        return RayCluster(workers, address)
    if name in ("slurm", "submitit-local"):
        from detrain.campaign.engine.slurm_jobs import SlurmJobs

        return SlurmJobs(workers or 4, folder / "jobs", is_local=name != "slurm")
    from detrain.campaign.engine.local import Local

    return Local(workers or len(os.sched_getaffinity(0)))


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal."""
    printer = console()
    if as_json or not printer.is_terminal:
        yield lambda _progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), console=printer) as bar:
        task = bar.add_task("", total=None, told="")

        def tell(progress: Progress) -> None:
            bar.update(task, total=progress.count, completed=progress.done + progress.unfired, told=_told(progress))

        yield tell


def _told(progress: Progress) -> str:
    left = progress.left_s
    rate = f"{progress.rate:,.0f}/h" + (f", {left / 3600:.1f} h left" if left is not None and left > 0 else "")
    most = sorted(progress.shares.items(), key=lambda pair: -pair[1])[:3]
    return "; ".join([rate, *(f"{name} {count / max(progress.done, 1):.1%}" for name, count in most)])


def _say(campaign: Campaign, progress: Progress, *, as_json: bool, has_digest: bool) -> None:
    from detrain.campaign.engine.ledger import Ledgers

    digest = Ledgers(campaign.ledgers, campaign.plan.digest).digest() if has_digest else ""
    if as_json:
        parts = {
            "count": progress.count,
            "done": progress.done,
            "unfired": progress.unfired,
            "shares": progress.shares,
            "an_hour": round(progress.rate),
            "seconds": round(progress.seconds, 3),
            "plan": campaign.plan.digest,
            "digest": digest,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(parts), indent=1).decode())
        return
    missing = progress.count - progress.done - progress.unfired
    click.echo(f"{progress.done:,} of {progress.count:,} trials are done" + (f", {missing:,} missing" if missing else ""))
    if progress.unfired:
        click.echo(f"{progress.unfired:,} drawn faults did not fire and are not counted")
    if progress.new and progress.seconds:
        click.echo(f"{progress.new:,} in {progress.seconds:.0f} s, {progress.rate:,.0f} an hour")
    for outcome, count in sorted(progress.shares.items(), key=lambda pair: -pair[1]):
        click.echo(f"  {outcome:40} {count:>9,}  {count / max(sum(progress.shares.values()), 1):.1%}")
    if digest:
        click.echo(f"digest {digest}")
