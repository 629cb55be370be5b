"""A profile as the files of SASSIFI and NVBitFI: counts of instructions for each launch of a kernel.

Their columns are opcodes of GPUs, and their totals the sums of these: each of our outputs is charged to one opcode that
stands for its group. What ops there are, our own profile says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from detrain.faults.exchange.kernels import Kernels, Launch
from detrain.faults.population.groups import Group, NvbitfiGroup, nvbitfi_groups, use_of
from detrain.faults.population.profile import Output, Profile

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
"""NVBitFI's, for floats of 16 bits."""
SASSIFI_FILE: Final = "sassifi-inst-counts.txt"
NVBITFI_FILE: Final = "nvbitfi-igprofile.txt"


def sassifi_kernels(profile: Profile) -> Kernels:
    """Return a profile's launches with instructions numbered in SASSIFI's groups."""
    return Kernels(profile, lambda output: frozenset(map(int, output.groups)))


def nvbitfi_kernels(profile: Profile) -> Kernels:
    """Return a profile's launches with instructions numbered in NVBitFI's groups."""

    def groups(output: Output) -> frozenset[int]:
        return frozenset(map(int, nvbitfi_groups(output.site.op, output.dtype, use_of(output.site))))

    return Kernels(profile, groups)


def _counts(profile: Profile, launch: Launch, carrier: Callable[[Output], str]) -> dict[str, int]:
    """Return the instructions of a launch by opcode: each output once, by its own group."""
    kernels = Kernels(profile, lambda output: frozenset({int(output.group)}))
    found: dict[str, int] = {}
    for group in Group:
        for output in kernels.outputs(launch, int(group)):
            opcode = carrier(output)
            found[opcode] = found.get(opcode, 0) + output.in_step
    return found


class _ByKind:
    """Counts of opcodes, computed once for each kernel and kind of step."""

    def __init__(self, profile: Profile, carrier: Callable[[Output], str]) -> None:
        self._profile, self._carrier = profile, carrier
        self._known: dict[tuple[str, int], dict[str, int]] = {}

    def of(self, launch: Launch) -> dict[str, int]:
        key = launch.kernel, launch.kind
        if key not in self._known:
            self._known[key] = _counts(self._profile, launch, self._carrier)
        return self._known[key]


def sassifi_profile(profile: Profile) -> Iterator[str]:
    """Yield the lines of SASSIFI's file: a header, then each launch."""
    kernels = sassifi_kernels(profile)
    counts = _ByKind(profile, lambda output: _CARRIERS[output.group])
    yield ":".join(("kName", "kernelCount", *(group.name for group in Group), "WILL_NOT_EXECUTE", *SASSIFI_OPCODES)) + "\n"
    for launch in kernels.launches:
        totals = (kernels.total(launch, int(group)) for group in Group)
        opcodes = counts.of(launch)
        numbers = (launch.count, *totals, 0, *(opcodes.get(opcode, 0) for opcode in SASSIFI_OPCODES))
        yield ":".join((launch.kernel, *map(str, numbers))) + "\n"


def nvbitfi_profile(profile: Profile) -> Iterator[str]:
    """Yield the lines of NVBitFI's file, one a launch."""
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
