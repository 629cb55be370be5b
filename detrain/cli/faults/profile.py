"""`detrain profile`: the contents of a program's golden run, by group of instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from detrain.base import messages
from detrain.base.cursor import written
from detrain.base.options import Home, Option
from detrain.campaign.planning.profiling import profile_program
from detrain.campaign.subject import Subject
from detrain.cli.shared.options import Given, program_command
from detrain.cli.shared.printing import console, print_json, table
from detrain.faults.exchange.kernels import NVBITFI_FILE, SASSIFI_FILE, nvbitfi_profile, sassifi_profile
from detrain.faults.population.profile import Profile, Total, memory_totals, totals, write_profile
from detrain.reports.pictures import check_writable

_FILES: Final = {"detrain": "profile.json", "sassifi": SASSIFI_FILE, "nvbitfi": NVBITFI_FILE}


@program_command
def command(
    *,
    home: Home = "ckpt",
    out: Annotated[Path | None, Option("File of the profile [in the folder of the faults].")] = None,
    form: Annotated[
        Literal["detrain", "sassifi", "nvbitfi"],
        Option("Of the file: our own, or that of another tool, which has counts of launches alone.", flag="--format"),
    ] = "detrain",
    as_json: Annotated[bool, Option("Print the totals as JSON.", flag="--json")] = False,
    given: Given,
) -> int:
    """Count what PROGRAM's training steps compute: the population that a campaign draws from.

    The program is run to its end once, without a fault, unless that has been done.

    \b
    Example:
      detrain profile train.py --epochs 2
    """
    check_writable(out)
    subject = Subject(given.found(), given.arguments, Path(home))
    profile = profile_program(subject)
    path = out or subject.folder / _FILES[form]
    if form == "detrain":
        write_profile(path, profile)
    else:
        path.write_text("".join(sassifi_profile(profile) if form == "sassifi" else nvbitfi_profile(profile)), encoding="utf-8")
    counted = totals(profile)
    if as_json:
        print_json({"digest": profile.digest, "totals": counted, "memory": memory_totals(profile)})
        return 0
    _print(profile, counted)
    messages.say(f"the profile {profile.digest} is in {path}")
    return 0


def _print(profile: Profile, counted: list[Total]) -> None:
    printer = console()
    for number, kind in enumerate(profile.kinds):
        said = f"{kind.steps} of {profile.steps} steps, {len(kind.sites)} sites, as listed in {written(kind.at)}"
        printer.print(f"kind {number}: {said}")
    groups = table(("group", "", "outputs", "elements a step", "elements in all", "bytes in all", "dead"), left=("",))
    for each in counted:
        groups.add_row(
            str(int(each.group)),
            each.group.label,
            f"{each.outputs:,}",
            f"{each.in_step:,.0f}",
            f"{each.in_all:,}",
            f"{each.bytes_in_all:,}",
            f"{each.dead:,}",
        )
    printer.print(groups)
    if profile.memory or profile.overwritten:
        memory = table(("memory", "variables", "bytes before a step", "overwritten", "untouched"), left=("memory",))
        for of_kind in memory_totals(profile):
            counts = (of_kind.variables, of_kind.bytes, of_kind.overwritten, of_kind.untouched)
            memory.add_row(of_kind.kind, *(f"{count:,.0f}" for count in counts))
        printer.print(memory)
