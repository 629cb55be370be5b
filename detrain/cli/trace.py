"""`detrain trace`: find the loops of a program by watching it run, and write them to an inst.info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from detrain.base.errors import UsageError
from detrain.base.options import Option, home_option
from detrain.cli.shared.options import PROGRAM_SETTINGS, IsModule, takes_options
from detrain.launcher.become import become
from detrain.launcher.program import Program
from detrain.launcher.tracing import configure_trace


@click.command(context_settings=PROGRAM_SETTINGS)
@takes_options
def command(
    *,
    until_sure: Annotated[bool, Option("End as soon as the loops are known for sure (the default).")] = False,
    epochs: Annotated[int | None, Option("Watch for N epochs instead.", "N", least=1)] = None,
    second: Annotated[bool, Option("Second round, on a dataset of another size: confirm the loader.")] = False,
    diff_size: Annotated[int | None, Option("By how many elements the second dataset differs.", "N", least=1)] = None,
    home: Annotated[str, home_option("Folder of the inst.info")] = "ckpt",
    is_module: IsModule = False,
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
