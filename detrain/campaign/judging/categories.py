"""SASSIFI's categories of trial results, 1 to 18, and one of NVBitFI's; decided in a fixed order.

Sources: Hari et al., ISPASS 2017, and `scripts/parse_results.py` of NVlabs/sassifi. The original's order and conditions
lose trials (a time out is not counted, 6 cannot be reached, 8 is never used, stdout and stderr that both differ are
18); ours do not. Categories have SASSIFI's numbers; NVBitFI has one more, for Xid 43, and counts one more from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Literal

import msgspec


class Category(IntEnum):
    """SASSIFI's categories, by its numbers. 0 is a trial whose program's output was not judged."""

    UNTOLD = 0
    NEVER_READ = 1
    WRITTEN_FIRST = 2
    MASKED = 3
    TIMEOUT = 4
    EXIT_STATUS = 5
    MASKED_ERROR = 6
    SDC_ERROR = 7
    OTHER_MESSAGE = 8
    KNOWN_ERROR = 9
    STDERR_ONLY = 10
    DEVICE_STDERR = 11
    DEVICE_STDOUT = 12
    DEVICE_OUTPUT = 13
    DEVICE_CHECK = 14
    SDC_STDOUT = 15
    SDC_OUTPUT = 16
    SDC_CHECK = 17
    UNJUDGED = 18

    @property
    def kind(self) -> Literal["untold", "masked", "DUE", "potential DUE", "SDC", "uncategorized"]:
        """The heading of the category in SASSIFI's tables."""
        if self in (Category.UNTOLD, Category.UNJUDGED):
            return "untold" if self is Category.UNTOLD else "uncategorized"
        if self <= Category.MASKED:
            return "masked"
        if self <= Category.EXIT_STATUS:
            return "DUE"
        return "potential DUE" if self <= Category.DEVICE_CHECK else "SDC"

    @property
    def label(self) -> str:
        """The meaning of the category, in words."""
        return _LABELS[self]


_LABELS: Final = {
    Category.UNTOLD: "not told",
    Category.NEVER_READ: "masked: the error is never read",
    Category.WRITTEN_FIRST: "masked: written before it is read",
    Category.MASKED: "masked: other reasons",
    Category.TIMEOUT: "DUE: time out",
    Category.EXIT_STATUS: "DUE: exit status, signal or exception",
    Category.MASKED_ERROR: "potential DUE: masked, but the framework said an error",
    Category.SDC_ERROR: "potential DUE: output differs, but the framework said an error",
    Category.OTHER_MESSAGE: "potential DUE: other warnings",
    Category.KNOWN_ERROR: "potential DUE: a known error in the output",
    Category.STDERR_ONLY: "potential DUE: stderr differs",
    Category.DEVICE_STDERR: "potential DUE: stderr differs, and a device error",
    Category.DEVICE_STDOUT: "potential DUE: stdout differs, and a device error",
    Category.DEVICE_OUTPUT: "potential DUE: output differs, and a device error",
    Category.DEVICE_CHECK: "potential DUE: the check fails, and a device error",
    Category.SDC_STDOUT: "SDC: stdout differs",
    Category.SDC_OUTPUT: "SDC: output differs",
    Category.SDC_CHECK: "SDC: the check fails",
    Category.UNJUDGED: "could not be judged",
}


class TrialFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a trial, beside the golden run. Parts that nobody looked at count as equal."""

    is_timeout: bool = False
    status: int = 0
    """Exit status; negative for a signal."""
    golden_status: int = 0
    exception: str = ""
    """Class of an exception that left the program; a non-finite loss at which the program ends by itself is one."""
    caught: str = ""
    """Class of an error of the framework that the program caught."""
    liveness: Literal["", "never read", "written first"] = ""
    """For an RF fault, by the profile: its bits are never read, or written first; empty: neither is known."""
    text: str = ""
    """The program's text on stdout and stderr, in which known errors are looked for."""
    is_device_error: bool = False
    """The device has reported an error: a new Xid."""
    has_failed_check: bool = False
    """The user's check failed."""
    has_other_files: bool = False
    """True if files that the program wrote, or its final variables, differ."""
    has_other_stdout: bool = False
    has_other_stderr: bool = False
    has_only_warnings: bool = False
    """True if stderr differs only in warnings of Python or lines of absl."""
    is_judged: bool = True
    """True if the program's output could be compared at all."""


def category_of(given: TrialFacts) -> tuple[Category, str]:
    """Return the category of a trial, and the exception class or text that decided it, if any."""
    if given.is_timeout:
        return Category.TIMEOUT, ""
    if given.exception or given.status != given.golden_status:
        return Category.EXIT_STATUS, given.exception
    if given.liveness:
        return (Category.NEVER_READ if given.liveness == "never read" else Category.WRITTEN_FIRST), ""
    if known := known_error(given.text):
        return Category.KNOWN_ERROR, known
    if not given.is_judged:
        return Category.UNJUDGED, ""
    device = given.is_device_error
    if given.has_failed_check:
        return (Category.DEVICE_CHECK if device else Category.SDC_CHECK), ""
    if given.has_other_files or given.has_other_stdout:
        if device:
            return (Category.DEVICE_OUTPUT if given.has_other_files else Category.DEVICE_STDOUT), ""
        if given.caught:
            return Category.SDC_ERROR, given.caught
        return (Category.SDC_OUTPUT if given.has_other_files else Category.SDC_STDOUT), ""
    if given.has_other_stderr:
        if device:
            return Category.DEVICE_STDERR, ""
        return (Category.OTHER_MESSAGE if given.has_only_warnings else Category.STDERR_ONLY), ""
    return (Category.MASKED_ERROR, given.caught or "device") if given.caught or device else (Category.MASKED, "")


_KNOWN: Final = re.compile(
    "|".join(
        (
            r"misaligned address",
            r"illegal (memory access|address|instruction)",
            r"CUDA_ERROR_\w+",
            r"cudaError\w+",
            r"CUDNN_STATUS_(?!SUCCESS)\w+",
            r"CUBLAS_STATUS_(?!SUCCESS)\w+",
            r"device-side assert",
            r"unspecified launch failure",
        )
    )
)


def known_error(text: str) -> str:
    """Return the first known error of a device or its libraries in a program's text; empty if there is none."""
    found = _KNOWN.search(text)
    return found[0] if found else ""


_WARNING: Final = re.compile(
    r"^(?:.*:\d+: \w*Warning: |  \S|\[?[WEI] ?\d{4} \d\d:\d\d:\d\d|WARNING:|[IWEF]0000 "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] )"
)


def is_warning(line: str) -> bool:
    """Return whether a line of stderr is a warning of Python's, or a line of a framework's log (absl, glog)."""
    return _WARNING.match(line) is not None


def are_only_warnings(golden: Sequence[str], trial: Sequence[str]) -> bool:
    """Return whether lines of stderr differ, and the new and the missing ones are all warnings."""
    changed = [line for line in {*golden, *trial} if golden.count(line) != trial.count(line)]
    return bool(changed) and all(map(is_warning, changed))
