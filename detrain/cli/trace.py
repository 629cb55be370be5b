"""`detrain trace`: find the loops of a program by watching it run, and write them to an inst.info."""

from __future__ import annotations

from detrain.base.options import TraceOptions
from detrain.cli.shared.options import Given, program_command
from detrain.launcher.configuration import become, configure_trace


@program_command
def command(*, options: TraceOptions, given: Given) -> int:
    """Run PROGRAM and find its epoch loop, batch loop, loader and update; write them to an inst.info.

    \b
    Example:
      detrain trace train.py --epochs 3
    """
    options.check()
    become(configure_trace(given.found(), given.arguments, options), None)
