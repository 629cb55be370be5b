"""The shared part of each framework's `doctor`: it repeats computations, and `detrain doctor` compares the results.

It is run as `python -m detrain.adapters.NAME.doctor DETERMINISTIC REPEATS`, and prints JSON: by device and case the
digest of each repetition, or the name of the error with which the framework refused the case. NumPy draws the inputs
from fixed seeds, so that other processes compute the same results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import Array, digest_array

Case = Callable[[], Any]
RNG: Final = np.random.default_rng(2026)


def normal(*shape: int) -> Array:
    """Return an array of normally distributed numbers, in float32."""
    return RNG.normal(size=shape).astype(np.float32)


def asked() -> tuple[bool, int]:
    """Return the command line's arguments: whether ops are to be deterministic, and the number of repetitions."""
    return sys.argv[1] == "1", int(sys.argv[2])


def repeated(
    cases: Mapping[str, Case],
    repeats: int,
    arrays_of: Callable[[Any], Iterable[Array]],
    *refusals: type[Exception],
) -> dict[str, list[str]]:
    """Return the digest of each repetition of each case, or the error with which the framework refused the case."""
    found: dict[str, list[str]] = {}
    for name, case in cases.items():
        try:
            found[name] = [_digest(arrays_of(case())) for _ in range(repeats)]
        except refusals as error:
            found[name] = [f"refused: {type(error).__name__}"]
    return found


def say(version: str, cases: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Print the results, by device and case, with the framework's version."""
    print(json.dumps({"version": version, "cases": cases}))


def _digest(arrays: Iterable[Array]) -> str:
    return digest_bytes("".join(map(digest_array, arrays)).encode())
