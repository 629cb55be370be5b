"""The report of a defect of detrain: versions, the program's structure, and the traceback. It has no values of the
program, and no lines of its source: the traceback has files, lines and functions, and the error's first line.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from detrain.base import VERSION, messages
from detrain.base.errors import DetrainError, StoreError
from detrain.python.process.environment import base_environment

_LONGEST: Final = 200
"""The most characters of an error's message: a library's message may quote the values that it was given."""


def defect(error: BaseException, home: Path | None = None) -> DetrainError:
    """Print the traceback of an unexpected error, and write a report; return the error to print. `home` has the
    `inst.info`, if there is one.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        return StoreError("the folder in which this process runs has been removed", "start it again in one that stays")
    messages.put("".join(traceback.format_exception(error)).rstrip("\n"))
    try:
        path = _write(_text(error, home))
    except OSError as cause:
        return DetrainError(
            f"detrain itself failed; this is a defect of detrain (no report could be written: {cause.strerror or cause})",
            "please report it with the traceback above",
        )
    return DetrainError(
        "detrain itself failed; this is a defect of detrain",
        f"please report it with {path} (versions, the loops and the traceback, none of your data)",
    )


def _write(text: str) -> str:
    descriptor, path = tempfile.mkstemp(prefix="detrain-report-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _text(error: BaseException, home: Path | None) -> str:
    lines = [f"detrain {VERSION}", platform.platform()]
    lines += [f"{name} {value}" for name, value in base_environment(os.cpu_count() or 1).items() if value]
    lines += ["", "structure", _structure(home), "", "traceback"]
    for frame in traceback.extract_tb(error.__traceback__):
        lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}")
    first = (str(error).splitlines() or [""])[0]
    lines.append(f"{type(error).__module__}.{type(error).__qualname__}: {first[:_LONGEST]}")
    return "\n".join(lines) + f"\n\npython {sys.version}\n"


def _structure(home: Path | None) -> str:
    """Return the `inst.info` of a checkpoint home: names of files, lines and loops."""
    try:
        return (home / "inst.info").read_text("utf-8") if home is not None else "not known"
    except (OSError, UnicodeDecodeError):
        return "none written yet"
