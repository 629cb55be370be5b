"""`detrain ckpt`: list, show and verify checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.base.digest import digest_array
from detrain.base.errors import CheckpointDamaged, DetrainError, StoreError
from detrain.cli.printing import console
from detrain.export.files import command as export_command
from detrain.python.process.random_streams import RngState
from detrain.store import Catalogue, Snapshot, read, read_meta, verify
from detrain.store.catalogue import parse_name
from detrain.store.journal import Ends
from detrain.store.manifest import Manifest
from detrain.verify.state_diff import compare

_place = click.argument("place", metavar="[DIR|FILE]", type=click.Path(path_type=Path), default=Path("ckpt"), envvar="CKPT_DIR")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_ILLEGIBLE = "lines that are damaged, or were torn by a crash: {}; what they listed is confirmed by its own digests alone"


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
    rows = []
    for path in _files(place):
        try:
            stat = path.stat()
        except FileNotFoundError:  # a run has deleted it meanwhile
            continue
        row: dict[str, Any] = {"file": path.name, "bytes": stat.st_size, "age_s": round(time.time() - stat.st_mtime, 1)}
        try:
            meta = read_meta(path)
        except DetrainError as error:
            if not path.exists():
                continue
            row["error"] = error.what
        else:
            entry = parse_name(path)
            row |= {
                "program": meta.program,
                "run": meta.run,
                "cursor": str(entry.cursor) if entry else f"{meta.epoch}:{meta.batch}",
                "cut": meta.cut,
                "arguments": list(meta.arguments),
            }
        rows.append(row)
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
    ):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("file", overflow="fold")
    for row in rows:
        state = row.get("cut", Text("unreadable", "red"))
        age = f"{row['age_s']:.0f} s"
        table.add_row(
            row.get("program", ""), str(row.get("run", "")), row.get("cursor", ""), state, _size(row["bytes"]), age, row["file"]
        )
    console().print(table if rows else f"no checkpoints in {place}")
    for row in rows:
        if "error" in row:
            click.echo(f"{row['file']}: {row['error']}")
    return 0


@command.command("show")
@_json
@_place
def show(as_json: bool, place: Path) -> int:
    """Show a checkpoint (of a folder, the newest): cursor, tensors, random streams, Python state, environment.

    \b
    Example:
      detrain ckpt show ckpt
    """
    files = _files(place)
    if not files:
        raise StoreError(f"no checkpoint in {str(place)!r}", "give a checkpoint, or a folder that holds some")
    path = files[-1]
    content = _content(path, read(path))
    if as_json:
        click.echo(json.dumps(content, indent=2))
    else:
        _print_content(content)
    return 0


@command.command("verify")
@_json
@_place
def verify_checkpoints(as_json: bool, place: Path) -> int:
    """Check every digest of a checkpoint, or of all in a folder, there also what the manifest and the journal say of them.

    The exit status tells if all are good.

    \b
    Example:
      detrain ckpt verify ckpt
    """
    rows: list[dict[str, Any]] = []
    status = 0
    ends: dict[Path, Ends] = {}
    for path in _files(place):
        try:
            entry = parse_name(path)
            digest = verify(path) if entry is None else Catalogue(path.parent).confirm(entry)
            if entry is not None and place.is_dir():
                journal = Catalogue(place).journal(entry.program, entry.run)
                if journal not in ends:
                    ends[journal] = Ends.of(journal)
                ends[journal].require(read_meta(path).journal_bytes)
            rows.append({"file": path.name, "good": True, "digest": digest})
        except DetrainError as error:
            if not path.exists():  # a run has deleted it meanwhile
                continue
            rows.append({"file": path.name, "good": False, "error": error.what})
            status = error.exit_code
    for path in sorted(place.glob("*.manifest")) if place.is_dir() else ():
        manifest = Manifest(path)
        listed = list(manifest.digests())
        if listed and not (place / listed[-1]).exists():
            rows.append({"file": listed[-1], "good": False, "error": f"is gone; {path.name} lists it last"})
            status = CheckpointDamaged.exit_code
        if count := manifest.illegible():
            rows.append({"file": path.name, "good": True, "note": _ILLEGIBLE.format(count)})
    if not rows:
        raise StoreError(f"no checkpoint in {str(place)!r}", "give a checkpoint, or a folder that holds some")
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


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return [entry.path for entry in Catalogue(place).entries()]
    if not place.is_file():
        what = "is neither a file nor a folder" if place.exists() else "is not there"
        raise StoreError(f"{str(place)!r} {what}", "give a checkpoint, or a folder that holds some")
    return [place]


def _content(path: Path, snapshot: Snapshot) -> dict[str, Any]:
    graph = msgspec.msgpack.decode(snapshot.python)
    return {
        "file": str(path),
        "meta": json.loads(msgspec.json.encode(snapshot.meta)),
        "tensors": [
            {"name": key, "shape": list(array.shape), "dtype": str(array.dtype), "digest": digest_array(array)}
            for key, array in snapshot.tensors.items()
        ],
        "rng": {name: {"bytes": len(state), "position": _position(state)} for name, state in snapshot.rng.items()},
        "python": {key.replace("|", " "): _brief(item, graph["nodes"], snapshot) for key, item in graph["roots"].items()},
    }


def _position(packed: bytes) -> int | str:
    """Return the position in the Mersenne Twister's block; of another bit generator its name."""
    state = RngState.unpack(packed)
    return str(json.loads(state.other)["bit_generator"]) if state.other else int(state.words[-1])


def _brief(item: Any, nodes: list[list[Any]], snapshot: Snapshot) -> str:
    """Return a value in one short line."""
    if not isinstance(item, list):
        return repr(item)
    kind, *rest = nodes[item[0]]
    if kind in ("ndarray", "tensor", "npscalar"):
        array = snapshot.arrays[rest[0]]
        return f"{kind} {array.dtype}{list(array.shape)}" if array.ndim else f"{kind} {array[()]}"
    if kind in ("list", "tuple", "set", "frozenset", "deque", "dict", "OrderedDict", "Counter", "defaultdict"):
        shown = ", ".join(
            _brief(part, nodes, snapshot) for part in rest[0][:4] if not isinstance(part, list) or kind in ("list", "tuple")
        )
        return f"{kind} of {len(rest[0])}" + (f" [{shown}{', ...' if len(rest[0]) > 4 else ''}]" if shown else "")
    return f"{kind} {rest[0]}" if rest and isinstance(rest[0], str) else kind


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
    table = Table("tensor", "dtype", "shape", "digest", box=None, pad_edge=False)
    for row in content["tensors"]:
        table.add_row(row["name"], row["dtype"], str(row["shape"]), row["digest"][:16])
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
