"""`detrain ckpt`: list, show, verify and export checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.base.errors import CheckpointDamaged, MirrorFailed
from detrain.cli.shared.printing import console
from detrain.export.files import FORMATS, export
from detrain.reports import checkpoints, jobs
from detrain.store import Catalogue, read
from detrain.store.job_home import jobs_in
from detrain.store.mirror.remote import Remote, programs_at
from detrain.store.mirror.restore import bring_back
from detrain.store.mirror.states import state_names
from detrain.verify.state_diff import compare

_place = click.argument("place", metavar="[DIR|FILE]", type=click.Path(path_type=Path), default=Path("ckpt"), envvar="CKPT_DIR")
_place_or_mirror = click.argument("place", metavar="[DIR|FILE|MIRROR]", default="ckpt", envvar="CKPT_DIR")
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
@_place_or_mirror
def list_checkpoints(as_json: bool, place: str) -> int:
    """List the checkpoints of a folder, or the states of a mirror (`detrain run --mirror`).

    \b
    Examples:
      detrain ckpt ls --json ckpt
      detrain ckpt ls s3://bucket/folder
    """
    if _is_mirror(place):
        return _print_rows(checkpoints.list_states(place), as_json, f"nothing in the mirror {place}")
    return _list_home(as_json, Path(place))


def _list_home(as_json: bool, place: Path) -> int:
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
@_place_or_mirror
def verify_checkpoints(as_json: bool, place: str) -> int:
    """Check every digest of a checkpoint, or of all in a folder, there also what the manifest and the journal say of
    them; or of each state in a mirror.

    The exit status tells if all are good.

    \b
    Examples:
      detrain ckpt verify ckpt
      detrain ckpt verify s3://bucket/folder
    """
    if _is_mirror(place):
        rows = checkpoints.check_states(place)
        _print_rows(rows, as_json, f"nothing in the mirror {place}")
        return 0 if all(row["good"] for row in rows) else CheckpointDamaged.exit_code
    return _verify_home(as_json, Path(place))


@command.command("fetch")
@click.option("--program", default="", metavar="NAME", help="Only this one [all that are there].")
@click.argument("url")
@click.argument("home", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("ckpt"), envvar="CKPT_DIR")
def fetch(program: str, url: str, home: Path) -> int:
    """Bring the newest state of a mirror into a folder of checkpoints, as `detrain run --mirror` does; files of the
    program come into the current folder.

    \b
    Example:
      detrain ckpt fetch s3://bucket/folder ckpt
    """
    there = [name for name in programs_at(url) if state_names(Remote(url, name))]
    wanted = [name for name in there if program in ("", name, name.partition("/")[0])]
    if not wanted:
        what = f"nothing of {program!r}" if program else "nothing"
        raise MirrorFailed(f"{what} in the mirror {url}", "give the address that `detrain run --mirror` had, and a program of it")
    for name in wanted:
        folder = home / name if "/" in name else home  # the folder of a rank, or of the program
        state = bring_back(Remote(url, name), folder, name.partition("/")[0], Path.cwd())
        if state is None:
            click.echo(f"{name}: nothing newer in the mirror")
        else:
            click.echo(f"{name}: {state.checkpoint}, {_size(state.size)}, of {state.made}, by {state.host}")
    return 0


def _is_mirror(place: str) -> bool:
    return "://" in place or any(found for each in ("*", "*/rank-*") for found in Path(place).glob(f"{each}/states/*.json"))


def _print_rows(rows: list[dict[str, Any]], as_json: bool, otherwise: str) -> int:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    from rich.table import Table

    table = Table(*(rows[0] if rows else ()), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_size(value) if name == "size" else str(value) for name, value in row.items()))
    console().print(table if rows else otherwise)
    return 0


def _verify_home(as_json: bool, place: Path) -> int:
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


@command.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "form", type=click.Choice(list(FORMATS)), required=True, help="The format to write.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write [FILE, with another ending]."
)
@click.option("--match", default="", metavar="TEXT", help="Only tensors (for keras: models) whose name has this in it.")
def export_tensors(file: Path, form: str, output: Path | None, match: str) -> int:
    """Write the tensors of checkpoint FILE (weights, optimizer slots, metrics) to another format, each under its name.

    The values keep their bits. `.npz` knows no bfloat16: such a tensor goes in as its bits (uint16) under
    NAME:bfloat16.

    `keras` writes a file NAME.weights.h5 for `load_weights` of the model that the program makes; of several models one
    for each, NAME-MODEL.weights.h5 (`--match MODEL` takes one).

    \b
    Example:
      detrain ckpt export --to safetensors ckpt/train-r1-p0-e00003-e000000.h5
      detrain ckpt export --to keras -o digits.weights.h5 ckpt/train-r1-p0-e00003-e000000.h5
    """
    for each in export(file, form, output, match):
        if each.model:
            click.echo(f"{each.model}: {each.tensors} variables, to {each.path}")
        else:
            click.echo(f"{each.tensors} tensors, {each.size_bytes} bytes, to {each.path}")
    return 0


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
