"""`detrain run`: train, with checkpoints; run again, it resumes to the bit."""

from __future__ import annotations

import sys

from detrain.base.config import Ranks
from detrain.base.options import Options
from detrain.cli.shared.options import Given, program_command
from detrain.launcher.become import become
from detrain.launcher.configuration import configure


@program_command
def command(*, options: Options, given: Given) -> int:
    """Run PROGRAM deterministically and with checkpoints; run again, it resumes to the bit.

    \b
    Example:
      detrain run --every 50b train.py --epochs 10
    """
    options.check(is_job=Ranks.of_environment() is not None)
    become(*configure(given.found(), given.arguments, options, tuple(sys.argv[1:])))
