"""`detrain diff`: the place where two runs part: the first batch, and the first checkpoint and tensor, that differ."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from detrain.base.errors import StoreError, UsageError
from detrain.cli.shared.options import PROGRAM_SETTINGS
from detrain.store.job_home import jobs_in, ranks_of
from detrain.verify.verified_run import ComparedRun, compare_runs, described


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--bisect", "is_bisect", is_flag=True, help="Run PROGRAM again, and name the step and the op in which they part.")
@click.argument("one", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("other", metavar="RUN_B", type=click.Path(path_type=Path))
@click.argument("program", metavar="[PROGRAM ARGS…]", nargs=-1, type=click.UNPROCESSED)
def command(as_json: bool, is_bisect: bool, one: Path, other: Path, program: tuple[str, ...]) -> int:
    """Compare two runs: the first batch, and the first checkpoint and tensors, that differ. Exit status 1 if something
    does.

    RUN is a checkpoint home (its newest run), a journal in one, or a checkpoint. Jobs are compared rank by rank.

    \b
    Example:
      detrain diff ckpt_monday ckpt_tuesday
      detrain diff --bisect ckpt_monday ckpt_tuesday train.py --epochs 3
    """
    if is_bisect != bool(program):
        raise UsageError("--bisect and PROGRAM go together", "for example `detrain diff --bisect ckpt_a ckpt_b train.py`")
    if jobs_in(one) and jobs_in(other):
        return _diff_jobs(jobs_in(one)[0], jobs_in(other)[0], as_json=as_json)
    found = compare_runs(ComparedRun.at(one), ComparedRun.at(other))
    if not found.batches and not found.checkpoints:
        raise StoreError(f"{str(one)!r} and {str(other)!r} have no batch or checkpoint in common", "give two runs of one program")
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(found), "equal": found.is_equal}, indent=2))
    else:
        for line in described(found):
            click.echo(line)
    if is_bisect and not found.is_equal:
        from detrain.campaign.subject import Subject
        from detrain.launcher.program import Program
        from detrain.verify import bisect

        subject = Subject(Program.find(program[0], is_module=False), program[1:], one if one.is_dir() else one.parent)
        for line in bisect.described(bisect.bisect(ComparedRun.at(one), ComparedRun.at(other), found, subject)):
            click.echo(line)
    return 0 if found.is_equal else 1


def _diff_jobs(one: Path, other: Path, *, as_json: bool) -> int:
    """Compare two jobs rank by rank."""
    pairs = list(zip(ranks_of(one), ranks_of(other), strict=False))
    found = [compare_runs(ComparedRun.at(mine), ComparedRun.at(his)) for mine, his in pairs]
    counts = [len(ranks_of(job)) for job in (one, other)]
    is_equal = all(each.is_equal for each in found) and counts[0] == counts[1]
    if as_json:
        ranks = [{**msgspec.to_builtins(each), "equal": each.is_equal} for each in found]
        click.echo(json.dumps({"equal": is_equal, "ranks": ranks}, indent=2))
        return 0 if is_equal else 1
    if counts[0] != counts[1]:
        click.echo(f"{counts[0]} ranks and {counts[1]}")
    for rank, each in enumerate(found):
        for line in described(each):
            click.echo(f"rank {rank}  {line}")
    return 0 if is_equal else 1
