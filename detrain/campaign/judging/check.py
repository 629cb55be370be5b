"""The user's check of a program's results: a command, or a function of a module, in a process of its own.

It runs in the program's folder after the program's end: the program's files are there, and its final variables are in
an `.npz` file. `DETRAIN_VARIABLES` in the environment is that file's path; a function gets the arrays by name.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from detrain.base.child_processes import dying_with_this
from detrain.base.errors import UsageError

VARIABLES: Final = "DETRAIN_VARIABLES"
PASSES: Final = "passes"
FAILS: Final = "fails"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CALL: Final = (
    "import importlib, sys\n"
    "import numpy\n"
    "sys.path.insert(0, '')\n"
    "module, _, name = sys.argv[1].partition(':')\n"
    "with numpy.load(sys.argv[2]) as file:\n"
    "    found = getattr(importlib.import_module(module), name)({key: file[key] for key in file.files})\n"
)
_PASS: Final = f"{_CALL}sys.exit(0 if found else 1)\n"
_MEASURE: Final = f"{_CALL}print('\\n' + float(found).hex())\n"


def is_function(text: str) -> bool:
    """Return whether a text names a function: module:function."""
    return _FUNCTION.fullmatch(text) is not None


def measured_by(function: str, variables: Path, limit_s: float) -> float:
    """Return the number that the user's function (module:function) returns for a program's final variables, which it
    gets as arrays by name.

    Raises UsageError if it returns no number.
    """
    command = [sys.executable, "-c", _MEASURE, function, str(variables)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False, preexec_fn=dying_with_this())
        words = done.stdout.decode(errors="replace").split()
        if done.returncode == 0 and words:
            return float.fromhex(words[-1])
        why = (done.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        why = f"no end within {limit_s:.0f} s"
    except ValueError as error:
        why = str(error)
    raise UsageError(f"--metric {function!r} gives no number: {why}", "it is given arrays by name, and returns a number")


def command_of(check: str, variables: Path) -> list[str]:
    """Return the command of a check. Raises UsageError for a text that is no command."""
    if _FUNCTION.fullmatch(check):
        return [sys.executable, "-c", _PASS, check, str(variables)]
    try:
        words = shlex.split(check)
    except ValueError as error:
        raise UsageError(f"--check {check!r} is no command: {error}", "give a command, or module:function") from error
    if not words:
        raise UsageError("--check is empty", "give a command, or module:function")
    return words


def run_check(check: str, variables: Path, limit_s: float) -> tuple[str, str]:
    """Return whether a check passes (exit status 0, or its function returns true), and the last line of its stderr.

    A check that exceeds its time fails. `python` in a command is the interpreter of this process.

    Raises UsageError if it cannot be started.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            command_of(check, variables),
            env={**os.environ, "PATH": path, VARIABLES: str(variables)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
            preexec_fn=dying_with_this(),
        )
    except subprocess.TimeoutExpired:
        return FAILS, f"no end within {limit_s:.0f} s"
    except OSError as error:
        raise UsageError(f"--check {check!r} cannot be started: {error.strerror}", "give a command, or module:function") from error
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return FAILS if done.returncode else PASSES, said[-1] if said else f"status {done.returncode}"
