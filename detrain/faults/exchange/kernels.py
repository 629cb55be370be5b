"""A profile in the terms of SASSIFI and NVBitFI: launches of kernels, and dynamic instructions numbered in each group;
and the files that count instructions for each launch of a kernel.

A kernel is a compiled function (with PyTorch, the step); its k-th launch is the k-th step that runs it. An instruction
is an element of an output. The instructions of a launch are numbered by site, in the order of names, then by run of the
site, replica and element.

The columns of the files are opcodes of GPUs, and their totals are the sums of these: each of our outputs counts under
one opcode that stands for its group. Our own profile tells which ops there are.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

import msgspec

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.faults.population.groups import Group, NvbitfiGroup, nvbitfi_groups, use_of
from detrain.faults.population.profile import Output, Profile
from detrain.faults.sites import STAGES

STEP: Final = "step"
"""The kernel of sites whose names contain no function."""

# Columns of `get_inst_count_format` in each tool's scripts/common_functions.py, in its order.
_SASSIFI = """
ATOM ATOMS B2R BAR BFE BFI BPT BRA BRK BRX CAL CAS CCTL CCTLL CCTLT CONT CS2R CSET CSETP DADD DEPBAR DFMA DMNMX DMUL
DSET DSETP EXIT F2F F2I FADD FADD32I FCHK FCMP FFMA FFMA32I FLO FMNMX FMUL FMUL32I FSET FSETP FSWZ FSWZADD I2F I2I
IADD IADD3 IADD32I ICMP IMAD IMAD32I IMADSP IMNMX IMUL IMUL32I ISAD ISCADD ISCADD32I ISET ISETP JCAL JMX LD LDC LDG
LDL LDLK LDS LDSLK LDS_LDU LDU LD_LDU LEA LEPC LONGJMP LOP LOP3 LOP32I MEMBAR MOV MUFU NOP P2R PBK PCNT PEXIT PLONGJMP
POPC PRET PRMT PSET PSETP R2B R2P RED RET RRO S2R SEL SHF SHFL SHL SHR SSY ST STG STL STS STSCUL STSUL STUL SUATOM
SUBFM SUCLAMP SUEAU SULD SULDGA SULEA SUQ SURED SUST SUSTGA SYNC TEX TEXDEPBAR TEXS TLD TLD4 TLD4S TLDS TXQ UNMAPPED
USER_DEFINED VMNMX VOTE XMAD
"""
SASSIFI_OPCODES: Final = tuple(_SASSIFI.split())
_NVBITFI = """
FADD FADD32I FCHK FCMP FFMA FFMA32I FMNMX FMUL FMUL32I FSEL FSET FSETP FSWZADD IPA MUFU RRO DADD DFMA DMNMX DMUL DSET
DSETP HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HSET2 HSETP2 IDP IDP4A BFE BFI BMSK BREV FLO IADD IADD3 IADD32I
ICMP IMAD IMAD32I IMADSP IMNMX IMUL IMUL32I ISCADD ISCADD32I ISET ISETP LEA LOP LOP3 LOP32I PLOP3 POPC SHF SHL SHR
XMAD IMMA HMMA VABSDIFF VADD VMAD VMNMX VSET VSETP VSHL VSHR VABSDIFF4 F2F F2I I2F I2I I2IP FRND MOV MOV32I PRMT SEL
SGXT SHFL CSET CSETP PSET PSETP P2R R2P TEX TLD TLD4 TMML TXA TXD TXQ TEXS TLD4S TLDS STP LD LDC LDG LDL LDS ST STG
STL STS MATCH QSPC ATOM ATOMS RED CCTL CCTLL ERRBAR MEMBAR CCTLT SUATOM SULD SURED SUST BRA BRX JMP JMX SSY SYNC CAL
JCAL PRET RET BRK PBK CONT PCNT EXIT PEXIT LONGJMP PLONGJMP KIL BSSY BSYNC BREAK BMOV BPT IDE RAM RTT SAM RPCMOV
WARPSYNC YIELD NANOSLEEP NOP CS2R S2R LEPC B2R BAR R2B VOTE DEPBAR GETCRSPTR GETLMEMBASE SETCRSPTR SETLMEMBASE PMTRIG
SETCTAID
"""
NVBITFI_OPCODES: Final = tuple(_NVBITFI.split())
_CARRIERS: Final = {
    Group.CC: "CSETP",
    Group.STORE_OP: "STG",
    Group.IADD_IMUL_OP: "IADD",
    Group.FADD_FMUL_OP: "FADD",
    Group.DADD_DMUL_OP: "DADD",
    Group.MAD_OP: "IMAD",
    Group.FFMA_OP: "FFMA",
    Group.DFMA_OP: "DFMA",
    Group.SETP_OP: "FSETP",
    Group.LDS_OP: "LDS",
    Group.LD_OP: "LDG",
    Group.MISC_OP: "MUFU",
}
"""The opcode that stands for a group."""
_NARROW: Final = {"FADD": "HADD2", "FFMA": "HFMA2"}
"""The opcodes that NVBitFI has for floats of 16 bits."""
SASSIFI_FILE: Final = "sassifi-inst-counts.txt"
NVBITFI_FILE: Final = "nvbitfi-igprofile.txt"


class Launch(msgspec.Struct, frozen=True):
    """One run of a kernel."""

    kernel: str
    count: int
    """The number of the kernel's launches before this one."""
    at: Address
    kind: int


class Instruction(msgspec.Struct, frozen=True):
    """One element of one run of an output."""

    output: Output
    at: Address
    occurrence: int
    replica: int
    element: int
    is_dead: bool = False
    """True if nothing depends on it, so that a fault there is masked for certain."""


def kernel_of(site: str) -> str:
    """Return the kernel of a site, in characters that both tools accept."""
    first = site.partition("/")[0]
    return STEP if first in STAGES else escaped(first)


def escaped(name: str) -> str:
    """Return a name in letters, digits and `_`; others become `_` and their code, so that all names stay distinct."""
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_" if found[0] != "_" else "__", name)


class Kernels:
    """The launches of a profile, with their instructions in groups; `groups_of` gives the groups of an output."""

    def __init__(self, profile: Profile, groups_of: Callable[[Output], frozenset[int]]) -> None:
        self._profile = profile
        self._of: dict[tuple[str, int, int], list[Output]] = {}
        """Outputs by kernel, kind of step and group."""
        kernels: dict[int, dict[str, None]] = {}
        for output in sorted((*profile.outputs, *profile.dead), key=lambda each: (each.kind, each.site.name)):
            kernel = kernel_of(output.site.name)
            kernels.setdefault(output.kind, {})[kernel] = None
            for group in groups_of(output):
                self._of.setdefault((kernel, output.kind, group), []).append(output)
        self._dead = {(output.kind, output.site.name) for output in profile.dead}
        self._kernels = {kind: list(names) for kind, names in kernels.items()}
        self._ends: dict[tuple[str, int, int], list[int]] = {
            key: list(itertools.accumulate(each.in_step for each in outputs)) for key, outputs in self._of.items()
        }

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """All launches of the golden run, in order."""
        return tuple(self._launches())

    def _launches(self) -> Iterator[Launch]:
        steps = sorted(
            ((phase, epoch, batch), number)
            for number, kind in enumerate(self._profile.kinds)
            for phase, epoch, first, end in kind.runs
            for batch in range(first, end)
        )
        counts: dict[str, int] = {}
        for at, kind in steps:
            for kernel in self._kernels.get(kind, []):
                yield Launch(kernel, counts.get(kernel, 0), at, kind)
                counts[kernel] = counts.get(kernel, 0) + 1

    @cached_property
    def _by_count(self) -> dict[tuple[str, int], Launch]:
        return {(launch.kernel, launch.count): launch for launch in self.launches}

    @cached_property
    def _by_step(self) -> dict[tuple[str, Address], Launch]:
        return {(launch.kernel, launch.at): launch for launch in self.launches}

    def total(self, launch: Launch, group: int) -> int:
        """Return how many instructions of a group a launch has."""
        ends = self._ends.get((launch.kernel, launch.kind, group))
        return ends[-1] if ends else 0

    def outputs(self, launch: Launch, group: int) -> list[Output]:
        """Return the outputs of a group in a launch."""
        return self._of.get((launch.kernel, launch.kind, group), [])

    def instruction(self, kernel: str, count: int, group: int, number: int) -> Instruction:
        """Return an instruction by its number within a group of a launch.

        Raises FaultInvalid for an unknown launch or number. (Upstream's random numbers go up to the total itself.)
        """
        launch = self._by_count.get((kernel, count))
        if launch is None:
            raise FaultInvalid(
                f"the profile has no launch {count} of kernel {kernel!r}",
                "lists fit the profile that they were made from alone: export it with `detrain profile --format`",
            )
        total = self.total(launch, group)
        if not 0 <= number < total:
            raise FaultInvalid(
                f"launch {count} of kernel {kernel!r} has {total} instructions of group {group}, got number {number}",
                "numbers are from 0 to one less than that; upstream's lists may hold one more: leave the line out",
            )
        key = kernel, launch.kind, group
        place = bisect.bisect_right(self._ends[key], number)
        output = self._of[key][place]
        rest = number - (self._ends[key][place - 1] if place else 0)
        run, element = divmod(rest, output.elements)
        occurrence, replica = divmod(run, output.site.replicas)
        is_dead = (output.kind, output.site.name) in self._dead
        return Instruction(output, launch.at, occurrence, replica, element, is_dead)

    def number(self, site: str, at: Address, group: int, *, occurrence: int, replica: int, element: int) -> tuple[str, int, int]:
        """Return kernel, launch and number of an instruction. Raises FaultInvalid if the profile does not have it."""
        kernel = kernel_of(site)
        launch = self._by_step.get((kernel, at))
        if launch is not None:
            key = kernel, launch.kind, group
            for place, output in enumerate(self._of.get(key, [])):
                if output.site.name == site:
                    before = self._ends[key][place - 1] if place else 0
                    run = occurrence * output.site.replicas + replica
                    return kernel, launch.count, before + run * output.elements + element
        raise FaultInvalid(f"{site!r} is not in group {group} of step {at} of the profile", "give the profile of the campaign")


def sassifi_kernels(profile: Profile) -> Kernels:
    """Return a profile's launches with their instructions numbered in SASSIFI's groups."""
    return Kernels(profile, lambda output: frozenset(map(int, output.groups)))


def nvbitfi_kernels(profile: Profile) -> Kernels:
    """Return a profile's launches with their instructions numbered in NVBitFI's groups."""

    def groups(output: Output) -> frozenset[int]:
        return frozenset(map(int, nvbitfi_groups(output.site.op, output.dtype, use_of(output.site))))

    return Kernels(profile, groups)


def _counts(profile: Profile, launch: Launch, carrier: Callable[[Output], str]) -> dict[str, int]:
    """Return the number of a launch's instructions by opcode; each output counts once, under its own group."""
    kernels = Kernels(profile, lambda output: frozenset({int(output.group)}))
    found: dict[str, int] = {}
    for group in Group:
        for output in kernels.outputs(launch, int(group)):
            opcode = carrier(output)
            found[opcode] = found.get(opcode, 0) + output.in_step
    return found


class _ByKind:
    """Counts instructions by opcode, once for each kernel and kind of step."""

    def __init__(self, profile: Profile, carrier: Callable[[Output], str]) -> None:
        self._profile, self._carrier = profile, carrier
        self._known: dict[tuple[str, int], dict[str, int]] = {}

    def of(self, launch: Launch) -> dict[str, int]:
        key = launch.kernel, launch.kind
        if key not in self._known:
            self._known[key] = _counts(self._profile, launch, self._carrier)
        return self._known[key]


def sassifi_profile(profile: Profile) -> Iterator[str]:
    """Yield the lines of SASSIFI's file: a header, then one line for each launch."""
    kernels = sassifi_kernels(profile)
    counts = _ByKind(profile, lambda output: _CARRIERS[output.group])
    yield ":".join(("kName", "kernelCount", *(group.name for group in Group), "WILL_NOT_EXECUTE", *SASSIFI_OPCODES)) + "\n"
    for launch in kernels.launches:
        totals = (kernels.total(launch, int(group)) for group in Group)
        opcodes = counts.of(launch)
        numbers = (launch.count, *totals, 0, *(opcodes.get(opcode, 0) for opcode in SASSIFI_OPCODES))
        yield ":".join((launch.kernel, *map(str, numbers))) + "\n"


def nvbitfi_profile(profile: Profile) -> Iterator[str]:
    """Yield the lines of NVBitFI's file, one for each launch."""
    kernels = nvbitfi_kernels(profile)

    def carrier(output: Output) -> str:
        opcode = _CARRIERS[output.group]
        return _NARROW.get(opcode, opcode) if output.dtype in ("float16", "bfloat16") else opcode

    counts = _ByKind(profile, carrier)
    for launch in kernels.launches:
        opcodes = counts.of(launch)
        columns = [f"{opcode}: {opcodes.get(opcode, 0)}" for opcode in NVBITFI_OPCODES]
        columns += [f"{group.name.lower()}: {kernels.total(launch, int(group))}" for group in NvbitfiGroup]
        head = f"index: {launch.count}; kernel_name: {launch.kernel}; ctas: 1; instrs: {sum(opcodes.values())}"
        yield f"NVBit-igprofile; {head}; {', '.join(columns)}, \n"
