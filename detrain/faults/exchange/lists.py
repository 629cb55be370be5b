"""Lists of injections and their results, in the form of both tools: one file for each group and bit-flip model; and a
campaign's files in the folders where SASSIFI's and NVBitFI's own scripts look for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named
from detrain.faults.exchange.kernels import (
    NVBITFI_FILE,
    SASSIFI_FILE,
    Kernels,
    escaped,
    nvbitfi_kernels,
    nvbitfi_profile,
    sassifi_kernels,
    sassifi_profile,
)
from detrain.faults.exchange.listed import ListedPlan, ListLine, seed_of
from detrain.faults.experiment import Injection
from detrain.faults.outcome_classes import Outcome
from detrain.faults.population.address import ADDRESS_MODELS, masks
from detrain.faults.population.facts import Mode
from detrain.faults.population.groups import SASSIFI_MODELS, NvbitfiGroup, nvbitfi_groups, use_of
from detrain.faults.population.profile import Profile
from detrain.faults.population.trial_row import TrialRow

MODES: Final[dict[str, Mode]] = {"inst_value": "IOV", "inst_address": "IOA"}
_NAMES: Final = {mode: name for name, mode in MODES.items()}
_FILE: Final = re.compile(r"(?P<what>results-)?mode(?P<mode>\w+)-igid(?P<group>\w+)\.bfm(?P<model>\d+)\.(?P<count>\d+)\.txt")

Tool = Literal["sassifi", "nvbitfi"]
_SUITE: Final = "detrain"
_STDOUT: Final = 15
"""From this category on, NVBitFI's numbers are higher by one."""
_README: Final = """\
Files for the scripts of {tool}, made by detrain of {count} trials.

Copy this folder's parts over a checkout of {tool}, and set in scripts/{settings}:
  NUM_INJECTIONS = {injections}
  apps = {{{app!r}: {entry}}}
  {variables}
{pickle}"""
_PICKLE: Final = """\
SASSIFI's scripts want a pickle of registers to be there, of which nothing here is read. To make it, with their Python:
  python2 -c "import cPickle; cPickle.dump({{'step': 255}}, open('{path}', 'wb'), 2)"
"""


class ListName(msgspec.Struct, frozen=True):
    """The parts of the file name of a list, or of its results."""

    mode: Mode
    group: int
    model: int
    """The bit-flip model by SASSIFI's or NVBitFI's number: 0 to 3 mean the same in both."""
    count: int
    """The number of injections for which the tool was set."""

    @property
    def list_name(self) -> str:
        """The name of the list's file."""
        return f"mode{_NAMES[self.mode]}-igid{self.group}.bfm{self.model}.{self.count}.txt"

    @property
    def results_name(self) -> str:
        """The name of the file of its results."""
        return f"results-{self.list_name}"


def parse_name(path: Path) -> ListName:
    """Return the parts of a list's file name. Raises FaultInvalid for other names, and for lists of register files."""
    found = _FILE.fullmatch(path.name)
    if found is None:
        raise FaultInvalid(f"{path.name!r} is no list of injections", "its name is modeM-igidG.bfmB.N.txt, as upstream makes it")
    if found["mode"] not in MODES or not found["group"].isdecimal():
        raise FaultInvalid(
            f"{path.name!r} is a list of registers, which a profile of ops has not", f"give one of mode {', '.join(MODES)}"
        )
    if int(found["model"]) >= len(SASSIFI_MODELS):
        raise FaultInvalid(f"{path.name!r} is of bit-flip model {found['model']}", f"models are 0 to {len(SASSIFI_MODELS) - 1}")
    return ListName(MODES[found["mode"]], int(found["group"]), int(found["model"]), int(found["count"]))


def read_list(path: Path) -> list[ListLine]:
    """Return the lines of a list. Raises FaultInvalid with the first line that is no injection."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FaultInvalid(f"{str(path)!r} cannot be read: {error}", "give a list of injections") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            kernel, count, instruction, operand, bit = words
            found.append(ListLine(kernel, int(count), int(instruction), float(operand), float(bit)))
        except ValueError:
            raise FaultInvalid(
                f"{path}:{number}: {line!r} is no injection",
                "a line is: kernel, its launch, the instruction's number, a seed of the operand, a seed of the bit",
            ) from None
    return found


def plan_of_lines(
    name: ListName,
    lines: Sequence[ListLine],
    kernels: Kernels,
    profile_digest: str,
    *,
    group: int | None,
    after: int | None = None,
    least: int = 0,
    path: Path | str = "list",
) -> ListedPlan:
    """Return a list as a plan, matched to a profile. `group`: the group for the rows; None: each output's own.

    Raises FaultInvalid, with the line, if a line does not fit the profile.
    """
    if not lines:
        raise FaultInvalid(f"{str(path)!r} is empty", "upstream makes such lists of groups without an instruction: leave it out")
    instructions = []
    for number, line in enumerate(lines, 1):
        try:
            instructions.append(kernels.instruction(line.kernel, line.count, name.group, line.number))
        except FaultInvalid as error:
            raise FaultInvalid(f"{path}:{number}: {error.what}", error.todo) from error
    plan = ListedPlan(
        profile_digest,
        group,
        name.model,
        name.mode,
        tuple(instructions),
        tuple(lines),
        after,
        least,
    )
    for number in range(plan.count):
        try:
            plan.trial(number)
        except FaultInvalid as error:
            raise FaultInvalid(f"{path}:{number + 1}: {error.what}", error.todo) from error
    return plan


def write_list(path: Path, lines: Iterable[ListLine]) -> None:
    """Write a list, as upstream's `generate_injection_list.py` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{one.kernel} {one.count} {one.number} {one.operand_seed!r} {one.bit_seed!r} \n" for one in lines)
    path.write_text(text, encoding="utf-8")


InjectionOf = Callable[[TrialRow], Injection | None]
"""Returns a trial's fault by its plan; None if it is unknown."""


def listed(rows: Sequence[TrialRow], kernels: Kernels, group: int, injection_of: InjectionOf | None = None) -> list[ListLine]:
    """Return the lines of a list that does trials again; the trials have one model, and are all in `group`.

    The row of a wrong address does not tell where the value lands: `injection_of` does. Raises FaultInvalid without it.
    """
    found = []
    for row in rows:
        at = row.phase, row.epoch, row.batch
        element, seed = row.position, _seed(row)
        if row.mode == "IOA":
            drawn = injection_of(row) if injection_of is not None else None
            if drawn is None:
                raise FaultInvalid(f"where the value of trial {row.number} lands is not known", "give the plan of the campaign")
            element, seed = _address_of(drawn, row.model)
        kernel, count, number = kernels.number(row.site, at, group, occurrence=row.occurrence, replica=row.replica, element=element)
        found.append(ListLine(kernel, count, number, 0.5, seed))
    return found


def _address_of(drawn: Injection, model: str) -> tuple[int, float]:
    """Return the element whose value lands elsewhere, and the seed of the address bits that differ."""
    meant = int(drawn.array("sources")[0])
    landed = next(int(each) for each in drawn.array("positions") if each != meant)
    each = masks(drawn.elements, ADDRESS_MODELS[model])
    return meant, (each.index(meant ^ landed) + 0.5) / len(each)


def _seed(row: TrialRow) -> float:
    what = SASSIFI_MODELS.index(row.model) % 4 if row.model in SASSIFI_MODELS else 3
    pattern = int(row.injected, 16) if row.injected else 0
    return seed_of(row.bits, pattern, what, dtype_named(row.dtype))


def results_text(
    rows: Sequence[TrialRow],
    kernels: Kernels,
    group: int,
    categories: Sequence[int],
    *,
    separator: str,
    injection_of: InjectionOf | None = None,
) -> str:
    """Return the results of trials, one per line: `separator` is `-` for SASSIFI, `;` for NVBitFI, which numbers lines.

    `categories`: the tool's category for each row.
    """
    lines = []
    for number, (row, one, category) in enumerate(zip(rows, listed(rows, kernels, group, injection_of), categories, strict=True)):
        where = [one.kernel, str(one.count), str(one.number), f"{one.operand_seed:.12f}", f"{one.bit_seed:.12f}"]
        if separator == ";":
            where.insert(0, str(number))
        said = [
            separator.join(where),
            escaped(row.site),
            escaped(row.op) or "OTHER",
            str(row.position),
            str(min(row.bits, default=0)),
            f"{row.seconds:.6f}",
            str(category),
            "",
            f"value_before{row.golden}",
            f"value_after{row.injected}",
        ]
        lines.append(":".join(said) + "\n")
    return "".join(lines)


def export_tree(
    folder: Path,
    profile: Profile,
    rows: Sequence[TrialRow],
    *,
    tool: Tool,
    app: str,
    injection_of: InjectionOf | None = None,
) -> list[Path]:
    """Write the profile of a campaign, its trials as lists of injections, and their results; return the files.

    Only trials of SASSIFI's bit-flip models are written (NVBitFI has the first four, of values only). A trial without a
    category gets that of its outcome. Trials of wrong addresses need `injection_of`, the plan's fault for a row.
    Raises FaultInvalid if no trial is left.
    """
    sorted_rows = _by_list(profile, rows, tool)
    if not sorted_rows:
        raise FaultInvalid(
            f"none of {len(rows)} trials is of a bit-flip model of {tool}'s", f"plan with --models of {', '.join(SASSIFI_MODELS)}"
        )
    injections = max(map(len, sorted_rows.values()))
    is_sassifi = tool == "sassifi"
    logs = folder / "logs" / _SUITE / app if is_sassifi else folder / "logs" / app
    counts = folder / "suites" / _SUITE / app / SASSIFI_FILE if is_sassifi else logs / NVBITFI_FILE
    for needed in (logs / "injection-list", folder / "logs" / "results", counts.parent):
        needed.mkdir(parents=True, exist_ok=True)
    kernels = sassifi_kernels(profile) if is_sassifi else nvbitfi_kernels(profile)
    counts.write_text("".join(sassifi_profile(profile) if is_sassifi else nvbitfi_profile(profile)), encoding="utf-8")
    written = [counts]
    for (mode, group, model), chosen in sorted_rows.items():
        name = ListName("IOA" if mode == "IOA" else "IOV", group, model, injections)
        write_list(logs / "injection-list" / name.list_name, listed(chosen, kernels, group, injection_of))
        numbers = [_number(row, tool) for row in chosen]
        text = results_text(chosen, kernels, group, numbers, separator="-" if is_sassifi else ";", injection_of=injection_of)
        (logs / name.results_name).write_text(text, encoding="utf-8")
        written += [logs / "injection-list" / name.list_name, logs / name.results_name]
    readme = folder / "README.txt"
    readme.write_text(_readme(tool, app, injections, sorted_rows), encoding="utf-8")
    return [*written, readme]


_Key = tuple[str, int, int]


def _by_list(profile: Profile, rows: Sequence[TrialRow], tool: Tool) -> dict[_Key, list[TrialRow]]:
    """Return the rows by mode, the tool's group, and bit-flip model; rows without a place in the tool's lists are
    dropped.
    """
    sites = {site.name: site for kind in profile.kinds for site in kind.sites}
    found: dict[_Key, list[TrialRow]] = {}
    for row in sorted(rows, key=lambda each: each.number):
        if row.mode == "RF" or row.model not in SASSIFI_MODELS or row.operand != "output" or row.site not in sites:
            continue
        model = SASSIFI_MODELS.index(row.model)
        if tool == "sassifi":
            found.setdefault((row.mode, row.group, model), []).append(row)
        elif row.mode == "IOV" and model < len(SASSIFI_MODELS) // 2:
            for group in nvbitfi_groups(row.op, row.dtype, use_of(sites[row.site])) - {NvbitfiGroup.NODEST}:
                found.setdefault((row.mode, int(group), model), []).append(row)
    return dict(sorted(found.items()))


def _number(row: TrialRow, tool: Tool) -> int:
    """Return the tool's category of a trial."""
    number = row.category
    if not number:
        number = (Outcome.named(row.outcome) or Outcome.OTHER).category
    return number + (tool == "nvbitfi" and number >= _STDOUT)


def _readme(tool: Tool, app: str, injections: int, keys: dict[_Key, list[TrialRow]]) -> str:
    maps = []
    for mode, name in (("IOV", "inst_value_igid_bfm_map"), ("IOA", "inst_address_igid_bfm_map")):
        groups: dict[int, list[int]] = {}
        for of_mode, group, model in keys:
            if of_mode == mode:
                groups.setdefault(group, []).append(model)
        if groups or tool == "sassifi":
            maps.append(f"{name} = {groups}")
    is_sassifi = tool == "sassifi"
    path = f"suites/{_SUITE}/{app}/{app}_kernel_regcount.p"
    return _README.format(
        tool=tool,
        count=len({row.number for rows in keys.values() for row in rows}),
        settings="specific_params.py" if is_sassifi else "params.py",
        injections=injections,
        app=app,
        entry=f"[{_SUITE!r}, {app!r}, 1]" if is_sassifi else f"['.', {app!r}, '.', 1, '']",
        variables="\n  ".join(maps),
        pickle=_PICKLE.format(path=path) if is_sassifi else "",
    )
