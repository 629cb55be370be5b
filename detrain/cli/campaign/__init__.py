"""`detrain campaign`: very many faults, drawn by a plan, run by workers, kept in ledgers."""

from __future__ import annotations

import click

from detrain.cli.campaign.plan import plan
from detrain.cli.campaign.results import export, record, report
from detrain.cli.campaign.run import run, status, work


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Plan very many faults, run them, and say what came of them.

    \b
    Example:
      detrain campaign plan -n 20000 --after 3 train.py
      detrain campaign run train.py
      detrain campaign status train.py
    """


for each in (plan, run, status, report, record, export, work):
    command.add_command(each)
