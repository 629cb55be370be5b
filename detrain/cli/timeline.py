"""`detrain timeline`: the history of a run: starts, kills, resumes, checkpoints, alarms, losses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from detrain.base import messages
from detrain.base.options import Home, Option
from detrain.cli.shared.options import AsJson, Given, program_command
from detrain.cli.shared.printing import console, print_json, table


@program_command
def command(
    *,
    home: Home = "ckpt",
    page: Annotated[Path | None, Option("Write a page that needs nothing else.", "FILE", flag="--html")] = None,
    as_json: AsJson = False,
    given: Given,
) -> int:
    """Show what happened to the newest run of PROGRAM: when its processes started and ended, which were killed, what
    they went on from, the checkpoints with sizes and times, what changed in the environment, alarms, losses.

    \b
    Examples:
      detrain timeline train.py
      detrain timeline --html timeline.html train.py
    """
    from detrain.reports.pictures import check_writable
    from detrain.reports.timeline import page_of, rows_of, timelines

    check_writable(page)
    found = timelines(Path(home), given.found().name)
    if page is not None:
        page.write_text(page_of(found), encoding="utf-8")
        messages.say(f"the page is {page}")
    if as_json:
        print_json(found)
        return 0
    for each in found:
        rank = f", rank {each.rank}" if each.rank is not None else ""
        click.echo(f"{each.program}, run {each.run}{rank}: {each.batches} batches on record, the last {each.last or 'none'}")
        rows = table(("when", "what", "about it"), left=("when", "what", "about it"))
        for row in rows_of(each):
            rows.add_row(*row)
        console().print(rows)
    return 0
