"""The facts outside of the program that decide about bits: versions, the processor, threads, environment variables."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from detrain.base.byte_digests import digest_bytes
from detrain.base.framework_names import KNOWN
from detrain.base.installed import versions

_PACKAGES: Final = ("numpy", *(package for each in KNOWN for package in each.packages))
_SETTINGS: Final = ("PYTHONHASHSEED", *(name for each in KNOWN for name in each.settings))
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ASKED: Final = "DETRAIN_THREADS"
_HASH_SEED: Final = "0"


def threads_here() -> int:
    """Return how many threads a program gets: one for each processor that it may run on, or as many as were asked for
    (`set_threads`).
    """
    asked = os.environ.get(_ASKED, "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Have this process and those that it starts give a program so many threads: bits depend on it."""
    os.environ.update({name: str(count) for name in (_ASKED, *_THREADS)})


def asked_for(recorded: Mapping[str, str]) -> int | None:
    """Return how many threads were asked for (`set_threads`) when an environment was recorded; None: not asked."""
    threads = recorded.get("threads", "")
    is_asked = threads.isdigit() and all(recorded.get(name) == threads for name in _THREADS if name in _SETTINGS)
    return int(threads) if is_asked else None


def base_environment(threads: int) -> dict[str, str]:
    """Return the environment, as far as it is known before the program starts."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "cpu": _cpu(), "threads": str(threads)}
    found.update(versions(_PACKAGES))
    for name in _SETTINGS:
        found[name] = variables(threads, None).get(name, os.environ.get(name, ""))
    return found


_OF_THE_USERS_OWN: Final = tuple(f"DETRAIN_RUN_{name}" for name in ("FRESH", "GOES_ON_FROM", "BARE", "MIRROR"))
"""Beginnings of variables that say where a run begins, and where else it writes."""


def variables(threads: int, recorded: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables to start the program with; `recorded`: the environment of the checkpoint to resume from."""
    chosen = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "")}
    if not chosen["PYTHONHASHSEED"].isdigit():
        chosen["PYTHONHASHSEED"] = _HASH_SEED
    chosen.update({name: os.environ.get(name) or value for each in KNOWN for name, value in each.chosen})
    for name, option in (pair for each in KNOWN for pair in each.options):
        given = os.environ.get(name, "")
        chosen[name] = given if option.partition("=")[0] in given else f"{given} {option}".strip()
    if recorded is not None:
        chosen.update({name: recorded[name] for name in _SETTINGS if recorded.get(name)})
        chosen.update(_threads_again(threads, recorded))
    return chosen


def _threads_again(threads: int, recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which each library gets as many threads as in a recorded run: as many as that run asked
    for, or else one for each of its `threads` processors.
    """
    count = recorded.get("OMP_NUM_THREADS") or str(threads)  # a library without a variable of its own takes this one
    is_other_machine = threads != threads_here()
    again = {}
    for name in _THREADS:
        is_set = bool(os.environ.get(name))
        if not recorded.get(name) and (name in recorded if is_set else is_other_machine):
            again[name] = count
    return again


def set_again(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a recorded environment that `variables` sets again, as it was recorded."""
    names = [name for name in _SETTINGS if recorded.get(name) or (name in _THREADS and name in recorded)]
    return {name: recorded[name] for name in names}


def for_runs_of_ours() -> dict[str, str]:
    """Return the environment for runs that detrain itself starts, in their own homes: without the variables that have
    the user's own run start elsewhere, or write elsewhere.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_USERS_OWN)}


def settings_here() -> dict[str, str]:
    """Return the variables of the environment that bits depend on, as they are here; empty: not set."""
    return {name: os.environ.get(name, "") for name in (*_SETTINGS, *_THREADS, _ASKED)}


def options_of_python() -> list[str]:
    """Return the options this interpreter was started with (-O, -W, -X dev, …), for a process that takes its place."""
    is_unbuffered = getattr(sys.__stdout__, "write_through", False)
    return [*subprocess._args_from_interpreter_flags(), *(["-u"] if is_unbuffered else [])]  # type: ignore[attr-defined]


def compare(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences, in words. Settings that are set again on resume (threads, variables) do not count."""
    again = {"threads", *_SETTINGS}
    names = [name for name in now if name in recorded or name in _PACKAGES]
    return [
        f"{name} was {recorded.get(name, 'not installed')!r}, is {now[name]!r}"
        for name in names
        if name not in again and recorded.get(name) != now[name]
    ]


@lru_cache(maxsize=1)
def _cpu() -> str:
    """Return the processor's model and a digest of its features, by which libraries choose their kernels."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor()
    fields = dict(line.partition(":")[::2] for line in text.partition("\n\n")[0].splitlines())
    plain = {key.strip(): value.strip() for key, value in fields.items()}
    features = " ".join(sorted((plain.get("flags") or plain.get("Features") or "").split()))
    return f"{plain.get('model name', platform.processor())} ({digest_bytes(features.encode())[:8]})"
