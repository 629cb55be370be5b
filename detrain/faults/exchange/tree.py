"""The files of a campaign in the folders where SASSIFI's and NVBitFI's own scripts look for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from detrain.base.errors import FaultInvalid
from detrain.faults.exchange.kernels import (
    NVBITFI_FILE,
    SASSIFI_FILE,
    nvbitfi_kernels,
    nvbitfi_profile,
    sassifi_kernels,
    sassifi_profile,
)
from detrain.faults.exchange.lists import InjectionOf, ListName, listed, results_text, write_list
from detrain.faults.outcome_classes import Outcome
from detrain.faults.population.groups import SASSIFI_MODELS, NvbitfiGroup, nvbitfi_groups, use_of
from detrain.faults.population.profile import Profile
from detrain.faults.population.trial_row import TrialRow

Tool = Literal["sassifi", "nvbitfi"]
_SUITE: Final = "detrain"
_STDOUT: Final = 15
"""From this category on NVBitFI counts one more."""
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

    Trials of SASSIFI's bit-flip models are written (NVBitFI has the first four, of values alone). Where a trial has no
    category, it is that of its outcome. Trials of wrong addresses take `injection_of`, what the plan has for a row.
    Raises FaultInvalid where none is left.
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
    """Return the rows by mode, the tool's group, and bit-flip model."""
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
    """Return a tool's category of a trial."""
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
