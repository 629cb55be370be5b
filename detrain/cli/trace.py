"""`detrain trace`: find the loops of a program by watching it run, and write them to an inst.info."""

from __future__ import annotations

from pathlib import Path

import click

from detrain.base.errors import UsageError
from detrain.cli.shared.options import PROGRAM_SETTINGS, home_option, program_arguments
from detrain.launcher.become import become
from detrain.launcher.program import Program
from detrain.launcher.tracing import configure_trace


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("--until-sure", "until_sure", is_flag=True, help="End as soon as the loops are known for sure (the default).")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Watch for N epochs instead.")
@click.option("--second", is_flag=True, help="Second round, on a dataset of another size: confirm the loader.")
@click.option("--diff-size", type=click.IntRange(min=1), metavar="N", help="By how many elements the second dataset differs.")
@home_option("Folder of the inst.info")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(
    until_sure: bool,
    epochs: int | None,
    second: bool,
    diff_size: int | None,
    home: str,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Run PROGRAM and find its epoch loop, batch loop, loader and update; write them to an inst.info.

    \b
    Example:
      detrain trace train.py --epochs 3
    """
    if until_sure and epochs is not None:
        raise UsageError(f"--until-sure and --epochs {epochs} exclude each other", "give one of them")
    if diff_size is not None and not second:
        raise UsageError(f"--diff-size {diff_size} is for the second round", "give --second too")
    found = Program.find(program, is_module=is_module)
    config = configure_trace(found, arguments, Path(home), epochs=epochs, is_second=second, diff_size=diff_size)
    become(config, None)
