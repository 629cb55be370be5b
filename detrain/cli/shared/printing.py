"""Printing for people: a program's text is shown unchanged, and lines are broken on terminals only."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from detrain.base.structure import FitCall

_UNBROKEN: Final = 100_000
"""Width of an output that is no terminal: names in it are searched for, and copied."""


def console() -> Console:
    """Return the console of standard output. It reads no text as markup: text of a program may look like markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout and sys.stdout.isatty() else _UNBROKEN)


def print_json(value: object) -> None:
    """Print a value as msgspec encodes it, indented."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def replay_command(record: Path, program: str, arguments: Sequence[str], *, home: str, is_module: bool) -> str:
    """Return the command that runs a record again, quoted for a shell."""
    options = [*(["--ckpt", home] if home != "ckpt" else []), *(["-m"] if is_module else [])]
    return shlex.join(["detrain", "replay", *options, str(record), program, *arguments])


def table(columns: Iterable[str], left: Container[str]) -> Table:
    """Return a table whose numbers stand at the right; texts, in the columns `left`, stand at the left."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return made


def show_fit(fit: FitCall, number: int, count: int) -> None:
    """Print a call of `fit`: its place, its epochs, its arguments, and how a resumed run comes back into it."""
    from detrain.instrument.fit_calls import summary, way_back

    click.echo(f"\ncall {number + 1} of fit" if count > 1 else "\ntrains through fit")
    click.secho(f"  {summary(fit)}" if fit.epochs is not None else "  not seen to train in a run", bold=True)
    click.echo(f"  {fit.place:22} {fit.function}")
    for name, text in fit.arguments.items():
        click.echo(f"    {name:20} {text}")
    click.echo("  probes               in Keras's own loops: a checkpoint each epoch, inside of epochs with --every 50b")
    click.echo(f"  a run that resumes   {way_back(fit)}")
