"""Options that all commands of campaigns share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from detrain.base.errors import UsageError
from detrain.base.options import Home, Option
from detrain.cli.shared.options import AsJson, IsModule
from detrain.launcher.program import Program

if TYPE_CHECKING:
    from detrain.campaign.engine.header import Campaign


def _name(name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"--name {name!r} is no name of a folder", "write letters, digits and - alone")
    return name


class Chosen(msgspec.Struct, kw_only=True):
    """The choice of a campaign of a program, and the form of the output."""

    home: Home = "ckpt"
    name: Annotated[str, Option("Of the campaign.", "TEXT", type=_name)] = "campaign"
    is_module: IsModule = False
    as_json: AsJson = False
    program: str
    arguments: tuple[str, ...]

    def campaign(self, name: str = "", *, must_be_as_now: bool = True) -> Campaign:
        """Return the chosen campaign, or another one of the program. If the program has changed since, the campaign can
        only be read, and only if `must_be_as_now` is false. Raises CampaignStopped.
        """
        from detrain.campaign.engine.header import find, load

        program = Program.find(self.program, is_module=self.is_module)
        folder = find(program, self.arguments, Path(self.home), name or self.name)
        return load(folder, self.arguments, must_be_as_now=must_be_as_now)
