"""`detrain doctor`: which computations this machine repeats bit for bit, run to run and process to process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import msgspec

from detrain.cli.shared.printing import console
from detrain.verify.repeatability import FRAMEWORKS, PROCESSES, Repeated, installed, measure

if TYPE_CHECKING:
    from rich.text import Text


@click.command()
@click.option("--framework", type=click.Choice(tuple(FRAMEWORKS)), help="Whose computations.  [default: the one installed]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--repeats", type=click.IntRange(2), default=8, show_default=True, metavar="N", help="Repetitions in each process.")
def command(framework: str | None, as_json: bool, repeats: int) -> int:
    """Measure on this machine's devices which computations of TensorFlow or PyTorch give the same bits again.

    Each is repeated in two processes, once as the framework is and once with deterministic ops, as under `detrain run`.
    Exit status 1 if something differs although ops are deterministic.

    \b
    Example:
      detrain doctor
      detrain doctor --framework torch
    """
    framework = framework or installed()
    found = measure(framework, repeats)
    if as_json:
        click.echo(json.dumps({framework: found.version, "repeats": repeats, "rows": msgspec.to_builtins(found.rows)}, indent=2))
    else:
        _print(FRAMEWORKS[framework], found.rows, repeats)
    return 0 if found.is_repeatable else 1


def _print(framework: str, rows: list[Repeated], repeats: int) -> None:
    from rich.table import Table

    table = Table("device", "computation", f"as {framework} is", "deterministic ops", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.device, row.computation, _in_words(row.stock), _in_words(row.deterministic))
    printer = console()
    printer.print(table)
    printer.print(
        f"same bits: in {repeats} repetitions, in each of {PROCESSES} processes; deterministic ops are what detrain run sets"
    )


def _in_words(said: dict[str, str]) -> Text:
    from rich.text import Text

    if said["runs"] not in ("yes", "no"):
        return Text(said["runs"], "yellow")
    if said["runs"] == "no":
        return Text("differs run to run", "red")
    return Text("same bits") if said["processes"] == "yes" else Text("differs process to process", "red")
