"""`detrain status`: the state of each program's newest run, also of jobs of several ranks, and a failure's cost now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from detrain.cli.shared.printing import console
from detrain.reports import jobs


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("place", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("ckpt"), envvar="CKPT_DIR")
def command(as_json: bool, place: Path) -> int:
    """Show how the newest run of each program in a checkpoint home stands: its ranks, how far they are by their
    journals, the last checkpoint that all of them have, and what a failure now would cost.

    \b
    Example:
      detrain status ckpt
    """
    rows = jobs.status_of(place)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    from rich.table import Table

    for row in rows:
        kind = f"job of {len(row['ranks'])} ranks" if row["job"] else "one process"
        ended = f" ({row['ended']})" if row["ended"] else ""
        click.echo(f"{row['program']}, run {row['run']}: {kind}, {'running' if row['running'] else f'not running{ended}'}")
        last = f"{row['last_checkpoint']}, {row['age_s']:.0f} s old" if row["last_checkpoint"] else "none yet"
        if row["just_in_time"]:
            every, all_ = row["just_in_time_every"], row["a_failure_costs_batches"]
            lost = "the batch under way" if every == 1 else f"{min(every, all_)} batches at most"
            cost = f"the death of a rank would cost {lost}, of all {all_} batches"
        else:
            cost = f"a failure now would cost {row['a_failure_costs_batches']} batches"
        click.echo(f"  last checkpoint {last}; {cost}")
        if row["mirror"]:
            click.echo(f"  {_mirrored(row['mirror'])}")
        table = Table("rank", "process", "at", "batches", "since the checkpoint", box=None, pad_edge=False)
        for rank in row["ranks"]:
            pid = "-" if rank["pid"] is None else str(rank["pid"])
            table.add_row(str(rank["rank"]), pid, rank["at"], str(rank["batches"]), str(rank["since_checkpoint"]))
        console().print(table)
    if not rows:
        click.echo(f"no checkpoints in {place}" + ("" if place.is_dir() else ", which is no folder"))
    return 0


def _mirrored(sent: dict[str, Any]) -> str:
    behind = f"; {sent['waiting']} is on its way" if sent["waiting"] else ""
    why = f" ({sent['error']})" if sent["error"] else ""
    return f"mirror {sent['url']}: {sent['checkpoint'] or 'nothing yet'}{behind}{why}"
