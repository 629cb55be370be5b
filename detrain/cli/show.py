"""`detrain show`: the loops of an inst.info in an annotated listing of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.base.errors import StoreError
from detrain.base.structure import Loop, Nest, read_info
from detrain.cli.shared.printing import show_fit

_CONTEXT_LINES = 2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--base", type=click.Path(path_type=Path), help="Folder of the program [where its files are found].")
@click.argument("info", type=click.Path(path_type=Path))
def command(as_json: bool, base: Path | None, info: Path) -> int:
    """Show the loops that an inst.info names, in their source, and what speaks for each.

    \b
    Example:
      detrain show ckpt/inst.info
    """
    if not info.is_file():
        raise StoreError(f"no inst.info at {str(info)!r}", "`detrain trace PROGRAM` writes one into the checkpoint home")
    structure = read_info(info, base or _base(info))
    if as_json:
        click.echo(msgspec.json.format(json.dumps(msgspec.to_builtins(structure)), indent=2))
        return 0
    click.echo(f"{info}, from {_content(info).get('source', 'the original project')}")
    for number, nest in enumerate(structure.nests):
        _show(nest, number, len(structure.nests))
    for number, fit in enumerate(structure.fits):
        show_fit(fit, number, len(structure.fits))
    return 0


def _content(info: Path) -> dict[str, Any]:
    """Return the JSON of an inst.info; empty for the original project's form."""
    try:
        content = json.loads(info.read_text("utf-8"))
    except (ValueError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _base(info: Path) -> Path:
    """Return the folder to which the file names are relative: the one that a run wrote into it, or else its own."""
    return Path(str(_content(info).get("base") or info.parent))


def _show(nest: Nest, number: int, count: int) -> None:
    if count > 1:
        click.echo(f"\nphase {number}")
    click.secho("  sure" if nest.is_confirmed else "  not confirmed by a run", bold=True)
    for line in (*nest.evidence, *nest.remarks):
        click.echo(f"  - {line}")
    notes: dict[str, dict[int, list[str]]] = {}
    for loop, role in ((nest.epoch_loop, "epoch loop"), (nest.batch_loop, "batch loop")):
        if loop is not None:
            notes.setdefault(loop.file, {}).setdefault(loop.line, []).append(role)
    own = notes[nest.batch_loop.file]
    if nest.load_line is not None:
        own.setdefault(nest.load_line, []).append(f"load: {nest.loader}")
    elif nest.loader:
        own[nest.batch_loop.line].append(f"load: {nest.loader}")
    if nest.update_line is not None:
        own.setdefault(nest.update_line, []).append("update")
    for file, marks in notes.items():
        _list(file, marks, nest)


def _list(file: str, marks: dict[int, list[str]], nest: Nest) -> None:
    lines = Path(file).read_text("utf-8", "replace").splitlines()
    shown = sorted({near for line in marks for near in range(line - _CONTEXT_LINES, line + _CONTEXT_LINES + 1)})
    shown = [line for line in shown if 1 <= line <= len(lines)]
    width = min(max((len(lines[line - 1]) for line in shown), default=0), 90)
    click.echo(f"\n  {_heading(file, nest)}")
    last = 0
    for line in shown:
        if last and line > last + 1:
            click.echo("        ...")
        text = lines[line - 1]
        mark = click.style(f"  <- {'; '.join(marks[line])}", fg="green") if line in marks else ""
        click.echo(f"  {line:4}  {text:{width}}".rstrip() if not mark else f"  {line:4}  {text:{width}}{mark}")
        last = line


def _heading(file: str, nest: Nest) -> str:
    functions = {loop.function for loop in _loops(nest) if loop.file == file and loop.function}
    return Path(file).name + (f" ({', '.join(f'{name}()' for name in sorted(functions))})" if functions else "")


def _loops(nest: Nest) -> list[Loop]:
    return [loop for loop in (nest.epoch_loop, nest.batch_loop) if loop is not None]
