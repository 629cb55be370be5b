"""`detrain doctor`: whether everything that detrain needs is there, and which computations repeat bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from detrain.base.options import Option, home_option
from detrain.cli.shared.options import AsJson, takes_options
from detrain.cli.shared.printing import console
from detrain.verify.installation import PROCESSES, WITH_DOCTOR, Check, Repeated, check_installation, installed, measure

if TYPE_CHECKING:
    from rich.text import Text


@click.command()
@takes_options
def command(
    *,
    framework: Annotated[
        str | None, Option("Whose computations.  [default: the one installed]", type=click.Choice(tuple(WITH_DOCTOR)))
    ] = None,
    as_json: AsJson = False,
    repeats: Annotated[int, Option("Repetitions in each process.", "N", least=2)] = 8,
    quick: Annotated[bool, Option("Look at the installation only, and measure nothing.")] = False,
    home: Annotated[str, home_option("Folder of the checkpoints, whose file system is tried")] = "ckpt",
) -> int:
    """Look at what is installed, and measure which computations of TensorFlow or PyTorch give the same bits again.

    First come frameworks and versions, devices, and the file system of the checkpoints with its locks. Then each
    computation is repeated in two processes, once as the framework is and once with deterministic ops, as under
    `detrain run`. Exit status 1 if something is missing, or differs although ops are deterministic.

    \b
    Example:
      detrain doctor --quick
      detrain doctor --framework torch
    """
    checks = check_installation(Path(home))
    is_good = all(check.is_good for check in checks)
    said = {"installation": msgspec.to_builtins(checks)}
    if not as_json:
        _print_installation(checks)
    measured = framework or installed()
    if not quick and measured is not None:
        found = measure(measured, repeats)
        said |= {measured: found.version, "repeats": repeats, "rows": msgspec.to_builtins(found.rows)}
        is_good = is_good and found.is_repeatable
        if not as_json:
            click.echo()
            _print(WITH_DOCTOR[measured], found.rows, repeats)
    if as_json:
        click.echo(json.dumps(said, indent=2))
    return 0 if is_good else 1


def _print_installation(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        table.add_row(Text("good") if check.is_good else Text("BAD ", "red"), check.what, check.found)
        if check.todo:
            table.add_row("", "", check.todo)
    console().print(table)


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
