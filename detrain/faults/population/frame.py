"""The faults that a campaign may draw, with their shares: outputs of ops in steps of a kind, by mode, group and model.

A rule decides the shares. By `elements`, all elements that a step computes are equally likely: SASSIFI draws uniformly
from the dynamic instructions of all threads, and an element of an output stands for one of these.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import FaultInvalid, UsageError
from detrain.faults.bits import dtype_named
from detrain.faults.drawing import draw_injection
from detrain.faults.models import FaultModel, model_named
from detrain.faults.plan import Operand, trial_rng
from detrain.faults.population.address import ADDRESS_MODELS, inside
from detrain.faults.population.facts import Mode
from detrain.faults.population.groups import OWN, SASSIFI_MODELS, Group, allowed_models, group_named
from detrain.faults.population.profile import Output, Profile, work_of

Rule = Literal["elements", "work", "bytes", "site"]
StratumPart = Literal["stage", "group", "model", "mode", "layer", "dtype", "phase", "op"]
RULES: Final[tuple[str, ...]] = get_args(Rule)
PARTS: Final[tuple[str, ...]] = get_args(StratumPart)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a profile from which trials are drawn, and the way of drawing."""

    seed: int = 0
    modes: tuple[Mode, ...] = ("IOV",)
    groups: tuple[str, ...] = ()
    """SASSIFI's groups, by name or number; empty: the own group of every output, so each output once."""
    models: tuple[str, ...] = ("FLIP:1",)
    rule: Rule = "elements"
    strata: tuple[StratumPart, ...] = ("stage", "group")
    site: str = "*"
    """Pattern of the sites."""
    stage: str = ""


class Cell(msgspec.Struct, frozen=True):
    """One output with one way to hit it."""

    output: Output
    mode: Mode
    group: Group | None
    """None for memory (RF)."""
    model: FaultModel
    stratum: str
    share: float
    """The cell's share; all shares together are 1."""


class Left(msgspec.Struct, frozen=True):
    """The faults that become no trials, as shares of all that the rule counts in the chosen modes and groups."""

    dead: float
    """Nothing depends on the output, or (memory) it is overwritten before it is read: masked."""
    outside: float
    """The wrong address is behind the tensor's end."""
    unfit: float
    """The model cannot hit the output: its tensor is too small, or its dtype lacks such bits."""


class Frame(msgspec.Struct, frozen=True):
    """All cells, and the shares that they leave out."""

    cells: tuple[Cell, ...]
    left: Left
    strata: tuple[str, ...]
    """Names of the strata, in order."""
    overlaps: bool
    """True if groups overlap, or modes are mixed: shares of all trials together then belong to no one population."""

    def shares(self) -> NDArray[np.float64]:
        """Return the share of each stratum; together 1."""
        at = {name: number for number, name in enumerate(self.strata)}
        owners, shares = [at[cell.stratum] for cell in self.cells], [cell.share for cell in self.cells]
        return np.asarray(np.bincount(owners, shares, len(self.strata)), np.float64)


def check_choice(choice: Selection) -> tuple[list[Group], list[FaultModel]]:
    """Return the groups and models of a choice, before anything is run. Raises UsageError, FaultInvalid for unknown
    ones.
    """
    groups, models = _groups(choice), _models(choice)
    _require(set(choice.strata) <= set(PARTS), f"strata by {', '.join(choice.strata)}", f"give some of {', '.join(PARTS)}")
    _require(choice.rule in RULES, f"shares by {choice.rule!r}", f"give one of {', '.join(RULES)}")
    is_known = bool(choice.modes) and set(choice.modes) <= set(get_args(Mode))
    _require(is_known, f"modes {', '.join(choice.modes)}", f"give some of {', '.join(get_args(Mode))}")
    return groups, models


def frame_of(profile: Profile, choice: Selection) -> Frame:
    """Return the cells from which a choice draws, and the shares that they leave out.

    Raises UsageError for an unknown group, mode, model or stratum, FaultInvalid if a group, or the whole choice, has
    nothing to draw.
    """
    groups, models = check_choice(choice)
    measured: list[tuple[Output, Mode, Group | None, FaultModel, float]] = []
    dead = outside = unfit = 0.0
    fits = _Fits()
    for mode in choice.modes:
        for group in groups if mode != "RF" else [None]:
            label = "memory" if group is None else group.label
            is_asked = bool(choice.groups) or group is None
            chosen = [model for model in models if _goes(model, group, mode)]
            of_group = _chosen(profile, group, choice)
            if not chosen and not is_asked:
                unfit += sum(_measure(each, models[0], choice.rule) for each in of_group)
                continue
            if not chosen:
                raise FaultInvalid(
                    f"no model of {', '.join(choice.models)} goes with {label} in mode {mode}", _models_for(group, mode)
                )
            if not of_group and is_asked:
                raise FaultInvalid(f"the profile has no live output of {label}", "`detrain profile PROGRAM` says what it has")
            for model in chosen:
                for output in of_group:
                    counted = _measure(output, model, choice.rule) / len(chosen)
                    if not counted:
                        continue
                    if mode == "IOA":
                        stays, every = inside(output.elements, ADDRESS_MODELS[model.name])
                        if not stays:
                            unfit += counted
                            continue
                        outside += counted * (1 - stays / every)
                        counted *= stays / every
                    elif not fits.has(output, model):
                        unfit += counted
                        continue
                    measured.append((output, mode, group, model, counted))
                masked = _of_memory(profile.overwritten, choice) if group is None else profile.dead
                dead += sum(
                    _measure(each, model, choice.rule) / len(chosen)
                    for each in masked
                    if group is None or _is_chosen(each, group, choice)
                )
    total = math.fsum(each[-1] for each in measured)
    if not measured or not total > 0:
        raise FaultInvalid(
            f"nothing can be drawn: no site that fits {choice.site!r} has an output that {', '.join(choice.models)} can hit",
            "choose other groups, models or sites; `detrain profile PROGRAM` says what there is",
        )
    whole = total + dead + outside + unfit
    cells = tuple(
        Cell(output, mode, group, model, _stratum(choice.strata, output, mode, group, model), counted / total)
        for output, mode, group, model, counted in measured
    )
    left = Left(dead / whole, outside / whole, unfit / whole)
    is_mixed = len(choice.modes) > 1 or (not set(groups) <= set(OWN) and len(groups) > 1)
    return Frame(cells, left, tuple(sorted({cell.stratum for cell in cells})), is_mixed)


class _Fits:
    """Decides by one draw whether a model can hit a site; it draws once for sites that are alike."""

    def __init__(self) -> None:
        self._known: dict[object, bool] = {}

    def has(self, output: Output, model: FaultModel) -> bool:
        site = output.site
        shapes = tuple(sorted((name, each.shape, each.dtype) for name, each in site.operands.items()))
        key = model.name, shapes, site.op, site.role, site.is_turned, repr(sorted(site.attributes.items()))
        if key not in self._known:
            self._known[key] = False
            with contextlib.suppress(FaultInvalid):
                draw_injection(site, model, 0, trial_rng(0, 0))
                self._known[key] = True
        return self._known[key]


def _chosen(profile: Profile, group: Group | None, choice: Selection) -> list[Output]:
    if group is None:
        return _of_memory(profile.memory, choice)
    return [each for each in profile.outputs if _is_chosen(each, group, choice)]


def _of_memory(outputs: Iterable[Output], choice: Selection) -> list[Output]:
    return [each for each in outputs if each.site.fits(choice.site) and choice.stage in ("", each.site.op)]


def _is_chosen(output: Output, group: Group | None, choice: Selection) -> bool:
    own_alone = not choice.groups
    is_of_group = output.group is group if own_alone else group in output.groups
    return is_of_group and output.site.fits(choice.site) and choice.stage in ("", output.site.stage)


def _goes(model: FaultModel, group: Group | None, mode: Mode) -> bool:
    if mode == "IOA":
        return model.name in ADDRESS_MODELS
    if mode == "RF" and model.operand is not Operand.OUTPUT:
        return False
    return model.name not in SASSIFI_MODELS or SASSIFI_MODELS.index(model.name) in allowed_models(group, mode)


def _models_for(group: Group | None, mode: Mode) -> str:
    return f"it goes with {', '.join(SASSIFI_MODELS[number] for number in allowed_models(group, mode))}"


def _measure(output: Output, model: FaultModel, rule: Rule) -> float:
    """Return the amount that the rule counts for an output, over all steps of its kind."""
    target = output.site.operands.get(model.operand.value)
    if target is None or min(target.shape, default=1) < 1:
        return 0.0
    if rule == "site":
        return float(output.steps)
    count = float(target.elements) * output.site.executions * output.site.replicas * output.steps
    if rule == "bytes":
        return count * dtype_named(target.dtype).unsigned.itemsize
    return count * work_of(output.site) if rule == "work" else count


def _stratum(parts: Sequence[StratumPart], output: Output, mode: Mode, group: Group | None, model: FaultModel) -> str:
    site = output.site
    said: dict[str, str] = {
        "stage": site.stage if group is not None else site.op,
        "group": group.label if group is not None else "memory",
        "model": model.name,
        "mode": mode,
        "layer": site.layer or "(none)",
        "dtype": output.dtype,
        "phase": f"kind {output.kind}",
        "op": site.op,
    }
    return " × ".join(said[part] for part in parts) or "all"


def _groups(choice: Selection) -> list[Group]:
    def read() -> Iterator[Group]:
        for text in choice.groups:
            try:
                yield group_named(text)
            except ValueError:
                raise UsageError(f"there is no group {text!r}", f"give some of {', '.join(each.label for each in Group)}") from None

    return list(dict.fromkeys(read())) or list(OWN)


def _models(choice: Selection) -> list[FaultModel]:
    _require(bool(choice.models), "no fault model", "give one or more, FLIP:1 for example")
    return [model_named(name) for name in dict.fromkeys(choice.models)]


def _require(condition: bool, what: str, todo: str) -> None:
    if not condition:
        raise UsageError(f"{what} cannot be drawn", todo)
