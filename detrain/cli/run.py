"""`detrain run`: train, with checkpoints; run again, it resumes to the bit."""

from __future__ import annotations

import sys

import click

from detrain.base.config import Ranks
from detrain.base.options import Options
from detrain.cli.shared.options import PROGRAM_SETTINGS, IsModule, takes_options
from detrain.launcher.become import become
from detrain.launcher.configuration import configure
from detrain.launcher.program import Program


@click.command(context_settings=PROGRAM_SETTINGS)
@takes_options
def command(*, options: Options, is_module: IsModule = False, program: str, arguments: tuple[str, ...]) -> int:
    """Run PROGRAM deterministically and with checkpoints; run again, it resumes to the bit.

    \b
    Example:
      detrain run --every 50b train.py --epochs 10
    """
    options.check(is_job=Ranks.of_environment() is not None)
    found = Program.find(program, is_module=is_module)
    become(*configure(found, arguments, options, tuple(sys.argv[1:])))
