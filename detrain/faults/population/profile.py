"""A profile: the contents of a golden run's steps. It lists the sites of each kind of step, and all steps of the kind.

Two steps are of one kind if the same ops run with the same shapes. A profile is the population that campaigns draw
from; its digest covers the population, and nothing else.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named
from detrain.faults.population.groups import Group, groups_of, own_group, use_of
from detrain.faults.sites import Access, OperandShape, Site

VERSION: Final = 2
Run = tuple[int, int, int, int]
"""Steps in a row: phase, epoch, the first batch, the batch behind the last."""


class StepKind(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in which the same ops run, with the same shapes."""

    at: Address
    """The step whose sites were listed."""
    runs: tuple[Run, ...]
    """All steps of the golden run that are of this kind, in order."""
    sites: tuple[Site, ...]

    @property
    def steps(self) -> int:
        """Number of steps of this kind."""
        return sum(end - first for _, _, first, end in self.runs)

    def cursor(self, number: int) -> Address:
        """Return the cursor of the kind's step with this number, from 0."""
        for phase, epoch, first, end in self.runs:
            if number < end - first:
                return phase, epoch, first + number
            number -= end - first
        raise IndexError(number)


class Output(msgspec.Struct, frozen=True):
    """One output of one op, in the steps of one kind."""

    kind: int
    site: Site
    group: Group
    """The output's own group; `groups` are all groups that contain it."""
    groups: frozenset[Group]
    elements: int
    """Elements of one run of the op on one replica."""
    steps: int

    @property
    def dtype(self) -> str:
        """The output's dtype."""
        return self.site.operands["output"].dtype

    @property
    def in_step(self) -> int:
        """Elements in one step, over all runs and replicas."""
        return self.elements * self.site.executions * self.site.replicas

    @property
    def in_all(self) -> int:
        """Elements in the whole golden run."""
        return self.in_step * self.steps


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The contents of a program's golden run."""

    program: str
    arguments: tuple[str, ...]
    kinds: tuple[StepKind, ...]

    @cached_property
    def digest(self) -> str:
        """xxh3-128, hex, of the kinds of steps."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode((VERSION, self.kinds), order="sorted"))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Each output that a fault can be in and that something depends on, once for each kind of step."""
        return tuple(each for each in self._all if each.site.is_alive and each.site.stage != "memory")

    @cached_property
    def dead(self) -> tuple[Output, ...]:
        """Outputs that nothing depends on: a fault there is masked, without a trial."""
        return tuple(each for each in self._all if not each.site.is_alive and each.site.stage != "memory")

    @cached_property
    def memory(self) -> tuple[Output, ...]:
        """Variables whose bits can be hit between steps, once for each kind of the step that follows. They have no
        group.
        """
        return tuple(each for each in self._all if each.site.is_alive and each.site.stage == "memory")

    @cached_property
    def overwritten(self) -> tuple[Output, ...]:
        """Variables that the next step overwrites as a whole before it reads them: a fault there is masked."""
        return tuple(each for each in self._all if not each.site.is_alive and each.site.stage == "memory")

    @cached_property
    def _all(self) -> tuple[Output, ...]:
        return tuple(self._outputs())

    def _outputs(self) -> Iterator[Output]:
        for number, kind in enumerate(self.kinds):
            for site in kind.sites:
                shape = site.operands.get("output")
                if shape is None or not site.executions or min(shape.shape, default=1) < 1:
                    continue  # it has no elements, or an unknown number
                use = use_of(site)
                own, groups = own_group(site.op, shape.dtype, use), groups_of(site.op, shape.dtype, use)
                yield Output(number, site, own, groups, shape.elements, kind.steps)

    @property
    def steps(self) -> int:
        """Number of steps of the golden run."""
        return sum(kind.steps for kind in self.kinds)


def profile_of(
    program: str, arguments: Sequence[str], listed: Iterable[tuple[Address, Sequence[Site], Sequence[Address]]]
) -> Profile:
    """Return the profile of listed steps: for each its cursor, its sites, and the steps that are taken to be like it.

    Steps with the same ops and shapes are put together. Raises FaultInvalid if nothing can be drawn.
    """
    together: dict[bytes, tuple[Address, Sequence[Site], list[Address]]] = {}
    for at, sites, cursors in listed:
        key = msgspec.json.encode(sorted(map(_shape, sites)))
        together.setdefault(key, (at, sites, []))[2].extend(cursors)
    kinds = tuple(
        StepKind(at=at, runs=tuple(_runs(sorted(cursors))), sites=tuple(sorted(sites, key=lambda site: site.name)))
        for at, sites, cursors in together.values()
        if cursors
    )
    profile = Profile(program=program, arguments=tuple(arguments), kinds=kinds)
    if not profile.outputs:
        count = sum(len(kind.sites) for kind in kinds)
        raise FaultInvalid(
            f"the profile is empty: of {count} sites in {profile.steps} steps none has a live output of a known shape",
            "`detrain sites --all PROGRAM` says what is there; a program that trains nothing has none",
        )
    return profile


def _shape(site: Site) -> tuple[str, str, int, list[tuple[str, OperandShape]], tuple[int, ...]]:
    access = () if site.access is None else (site.access.read, site.access.overwritten, site.access.untouched)
    return site.name, site.signature, site.executions, sorted(site.operands.items(), key=lambda item: item[0]), access


def _runs(cursors: Iterable[Address]) -> Iterator[Run]:
    for (phase, epoch), of_epoch in itertools.groupby(cursors, lambda cursor: cursor[:2]):
        batches = [batch for _, _, batch in of_epoch]
        for _, group in itertools.groupby(enumerate(batches), lambda pair: pair[1] - pair[0]):
            in_row = [batch for _, batch in group]
            yield phase, epoch, in_row[0], in_row[-1] + 1


def work_of(site: Site) -> int:
    """Return the multiply-adds for one element of an output; 1 if they are unknown, or there are none."""
    shapes = {name: operand.shape for name, operand in site.operands.items()}
    if not site.is_contraction or "weight" not in shapes or min(map(min, (each or (1,) for each in shapes.values()))) < 1:
        return 1
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if "onv" in site.op:
        # The multiply-adds of a convolution are |Y| |kernel| / channels out, whichever of its three tensors is made.
        of_y, of_kernel = {"": ("output", "weight"), "grad_in": ("input", "weight"), "grad_wt": _GRAD_WT}[site.role]
        if site.op.startswith("Depthwise"):
            kernel = shapes[of_kernel]
            return max(sizes[of_y] * kernel[0] * kernel[1] // sizes["output"], 1)
        kernel = shapes[of_kernel]
        # PyTorch's kernels have their output channels first; JAX's have them where Y has them.
        is_last = site.op[0].isupper() or (site.op == _OF_JAX and kernel[-1] == shapes[of_y][-1])
        return max(sizes[of_y] * sizes[of_kernel] // kernel[-1 if is_last else 0] // sizes["output"], 1)
    # The tensors of a batch of products have it, and so the same rank; else one of them has no such axes.
    is_batch = len({len(shape) for shape in shapes.values()}) == 1
    batch = math.prod(shapes["output"][:-2]) if is_batch else 1
    inner = math.isqrt(sizes["input"] * sizes["weight"] // max(sizes["output"] * batch, 1))  # (b·m·k)(b·k·n) / (b·m·n) / b = k²
    return max(inner, 1)


_OF_JAX: Final = "conv_general_dilated"
_GRAD_WT: Final = ("weight", "output")
"""The operands of a kernel's gradient that hold dY and the kernel."""


class Total(msgspec.Struct, frozen=True):
    """The totals of one group."""

    group: Group
    outputs: int
    in_step: float
    """Elements in one step, on average over the golden run."""
    in_all: int
    bytes_in_all: int
    dead: int
    """Further elements of the golden run, on which nothing depends."""


def totals(profile: Profile) -> list[Total]:
    """Return the totals of each of SASSIFI's groups, also of empty ones."""
    count: collections.Counter[Group] = collections.Counter()
    elements: collections.Counter[Group] = collections.Counter()
    size: collections.Counter[Group] = collections.Counter()
    dead: collections.Counter[Group] = collections.Counter()
    for output in profile.outputs:
        for group in output.groups:
            count[group] += 1
            elements[group] += output.in_all
            size[group] += output.in_all * dtype_named(output.dtype).unsigned.itemsize
    for output in profile.dead:
        for group in output.groups:
            dead[group] += output.in_all
    return [
        Total(group, count[group], elements[group] / profile.steps, elements[group], size[group], dead[group]) for group in Group
    ]


class MemoryTotal(msgspec.Struct, frozen=True):
    """The totals of one kind of memory. Bytes are those before a step, on average over the golden run."""

    kind: str
    """weight, slot, statistic, stream."""
    variables: int
    bytes: float
    overwritten: float = 0.0
    """Bytes that the step overwrites before it reads them."""
    untouched: float = 0.0
    """Bytes that the step neither reads nor writes."""
    masked: float = 0.0
    """Bytes of variables that are overwritten as a whole: no trial is made of these."""


def memory_totals(profile: Profile) -> list[MemoryTotal]:
    """Return the totals of each kind of memory between steps."""
    names: dict[str, set[str]] = {}
    size: dict[str, list[int]] = {}
    for each in (*profile.memory, *profile.overwritten):
        site, width = each.site, dtype_named(each.dtype).unsigned.itemsize * each.steps
        names.setdefault(site.op, set()).add(site.name)
        access = site.access or Access(each.elements, 0, 0)
        counts = (each.elements, access.overwritten, access.untouched, 0 if site.is_alive else each.elements)
        before = size.setdefault(site.op, [0] * len(counts))
        size[site.op] = [sum_ + width * count for sum_, count in zip(before, counts, strict=True)]
    return [MemoryTotal(kind, len(names[kind]), *(each / profile.steps for each in size[kind])) for kind in sorted(names)]


class _ProfileFile(msgspec.Struct, frozen=True):
    version: int
    digest: str
    profile: Profile


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile as JSON, with its version and digest."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(msgspec.json.encode(_ProfileFile(VERSION, profile.digest, profile)) + b"\n")
    temporary.replace(path)


def read_profile(path: Path) -> Profile:
    """Return a profile from its file.

    Raises FaultInvalid for one that is damaged, altered, empty or of another version.
    """
    again = "make it anew with `detrain profile PROGRAM`"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_ProfileFile)
    except (OSError, msgspec.DecodeError) as error:
        raise FaultInvalid(f"{str(path)!r} is no profile: {error}", again) from error
    if found.version != VERSION:
        raise FaultInvalid(f"{str(path)!r} is a profile of version {found.version}, expected {VERSION}", again)
    if found.digest != found.profile.digest:
        raise FaultInvalid(f"{str(path)!r} was altered: its digest is {found.profile.digest}, said is {found.digest}", again)
    return found.profile
