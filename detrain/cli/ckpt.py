"""`detrain ckpt`: list, show and verify checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.cli.export import command as export_command
from detrain.cli.shared.printing import console
from detrain.reports import checkpoints, jobs
from detrain.store import Catalogue, read
from detrain.store.job_home import jobs_in
from detrain.verify.state_diff import compare

_place = click.argument("place", metavar="[DIR|FILE]", type=click.Path(path_type=Path), default=Path("ckpt"), envvar="CKPT_DIR")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="ckpt")
def command() -> None:
    """Look at checkpoints: list, show, verify, compare, export.

    \b
    Example:
      detrain ckpt ls ckpt
    """


@command.command("ls")
@_json
@_place
def list_checkpoints(as_json: bool, place: Path) -> int:
    """List the checkpoints of a folder.

    \b
    Example:
      detrain ckpt ls --json ckpt
    """
    cuts = jobs.list_cuts(place)
    rows = checkpoints.list_checkpoints(place) + cuts
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name, side in (
        ("program", "left"),
        ("run", "right"),
        ("cursor", "right"),
        ("cut", "left"),
        ("size", "right"),
        ("age", "right"),
        *((("ranks", "right"),) if cuts else ()),
    ):
        table.add_column(name, justify=side)
    table.add_column("file", overflow="fold")
    for row in rows:
        state = row.get("cut", Text("unreadable", "red"))
        age = f"{row['age_s']:.0f} s"
        ranks = [f"{len(row['ranks'])} of {row['world']}" if "world" in row else ""] if cuts else []
        first = (row.get("program", ""), str(row.get("run", "")), row.get("cursor", ""), state)
        table.add_row(*first, _size(row["bytes"]), age, *ranks, row["file"])
    console().print(table if rows else f"no checkpoints in {place}")
    for row in rows:
        if "error" in row:
            click.echo(f"{row['file']}: {row['error']}")
    return 0


@command.command("show")
@_json
@click.option("--rank", type=click.IntRange(0), default=0, metavar="N", help="Of a job: the part of this rank [0].")
@_place
def show(as_json: bool, rank: int, place: Path) -> int:
    """Show a checkpoint (of a folder, the newest): cursor, tensors, random streams, Python state, environment.

    \b
    Example:
      detrain ckpt show ckpt
    """
    found = jobs_in(place)
    is_job = found and not Catalogue(place).entries()
    content = jobs.describe_job(found[0], rank) if is_job else checkpoints.describe_checkpoint(place)
    if as_json:
        click.echo(json.dumps(content, indent=2))
    else:
        _print_content(content)
    return 0


@command.command("verify")
@_json
@_place
def verify_checkpoints(as_json: bool, place: Path) -> int:
    """Check every digest of a checkpoint, or of all in a folder, there also what the manifest and the journal say of
    them.

    The exit status tells if all are good.

    \b
    Example:
      detrain ckpt verify ckpt
    """
    found = jobs_in(place)
    checked = [jobs.check_job(job) for job in found]
    if not found or Catalogue(place).entries():
        checked.append(checkpoints.check_checkpoints(place))
    rows, status = [row for part, _status in checked for row in part], max(each for _rows, each in checked)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        for row in rows:
            word = "note" if "note" in row else "good" if row["good"] else "BAD "
            click.echo(f"{word}  {row['file']}  {row.get('note') or row.get('digest') or row['error']}")
    return status


@command.command("diff")
@_json
@click.argument("one", metavar="FILE_A", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("other", metavar="FILE_B", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def diff(as_json: bool, one: Path, other: Path) -> int:
    """Compare two checkpoints: which values differ, in how many elements, how far. Exit status 1 if some do.

    \b
    Example:
      detrain ckpt diff a/train-r1-p0-e00003-e000000.h5 b/train-r1-p0-e00003-e000000.h5
    """
    differences = compare(read(one), read(other))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(differences), indent=2))
    else:
        for difference in differences:
            click.echo(f"{difference.what} {difference}")
        click.echo(f"{len(differences)} values differ" if differences else "equal to the bit")
    return 1 if differences else 0


command.add_command(export_command)


def _print_content(content: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    printer = console()
    meta = content["meta"]
    printer.print(Text(content["file"], "bold"))
    printer.print(
        f"cursor  phase {meta['phase']}, epoch {meta['epoch']}, batch {meta['batch']} (cut: {meta['cut']})",
    )
    printer.print(
        f"program {meta['program']} {' '.join(meta['arguments'])}, run {meta['run']}, seed {meta['seed']}",
    )
    is_spread = any("spread" in row for row in content["tensors"])
    table = Table("tensor", "dtype", "shape", *(["of"] if is_spread else []), "digest", box=None, pad_edge=False)
    for row in content["tensors"]:
        of = [row.get("spread", "")] if is_spread else []
        table.add_row(row["name"], row["dtype"], str(row["shape"]), *of, row["digest"][:16])
    printer.print(table)
    rng = Table("random stream", "position", box=None, pad_edge=False)
    for name, state in content["rng"].items():
        rng.add_row(name, str(state["position"]))
    printer.print(rng)
    python = Table("Python state", "value", box=None, pad_edge=False)
    for name, value in content["python"].items():
        python.add_row(name, value[:100])
    printer.print(python)
    environment = Table("environment", "", box=None, pad_edge=False)
    for name, value in meta["environment"].items():
        environment.add_row(name, value)
    printer.print(environment)
    if meta["not_captured"]:
        printer.print("not captured: " + ", ".join(meta["not_captured"]))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
