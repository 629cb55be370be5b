"""What all commands of campaigns have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain.base.errors import UsageError
from detrain.cli.shared.options import home_option, program_arguments

if TYPE_CHECKING:
    from detrain.campaign.engine.header import Campaign


def of_campaign(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all subcommands have."""
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(program_arguments(function))
    function = click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")(function)
    function = click.option("--name", default="campaign", show_default=True, callback=_name, help="Of the campaign.")(function)
    return home_option("Folder of the checkpoints")(function)


def _name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"--name {name!r} is no name of a folder", "write letters, digits and - alone")
    return name


def found_campaign(home: str, name: str, program: str, arguments: tuple[str, ...], *, is_module: bool) -> Campaign:
    """Return the campaign of a program. Raises CampaignStopped."""
    from detrain.campaign.engine.header import find, load
    from detrain.launcher.program import Program

    return load(find(Program.find(program, is_module=is_module), arguments, Path(home), name), arguments)
