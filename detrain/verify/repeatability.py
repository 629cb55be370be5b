"""Which computations a machine repeats bit for bit, run to run and process to process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Final

import msgspec

from detrain.base import messages
from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import KNOWN

PROCESSES: Final = 2
"""In so many each computation is repeated."""


class Repeated(msgspec.Struct, frozen=True):
    """One computation on one device.

    Of each setting: do `runs` of a process agree, and `processes`: yes, no, or why not known.
    """

    device: str
    computation: str
    stock: dict[str, str]
    """As the framework is."""
    deterministic: dict[str, str]
    """As `detrain run` sets it."""


class Repeatability(msgspec.Struct, frozen=True):
    """What was measured."""

    version: str
    """Of the framework."""
    rows: list[Repeated]

    @property
    def is_repeatable(self) -> bool:
        """Whether all is repeated where ops are deterministic."""
        return not any("no" in row.deterministic.values() for row in self.rows)


FRAMEWORKS: Final = {each.imported: each.name for each in KNOWN if each.has_doctor}
"""Those whose computations are known, as people call them."""


def installed() -> str | None:
    """Return the first of the frameworks that is installed; None if none is."""
    return next((name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None), None)


def measure(framework: str, repeats: int) -> Repeatability:
    """Do each computation so often in each process. Raises FrameworkUnsupported where it cannot be run."""
    stock = [_measure(framework, is_deterministic=False, repeats=repeats) for _ in range(PROCESSES)]
    settled = [_measure(framework, is_deterministic=True, repeats=repeats) for _ in range(PROCESSES)]
    rows = [
        Repeated(
            device,
            name,
            _said([run["cases"][device][name] for run in stock]),
            _said([run["cases"][device][name] for run in settled]),
        )
        for device, cases in settled[0]["cases"].items()
        for name in cases
    ]
    return Repeatability(settled[0]["version"], rows)


def _measure(framework: str, *, is_deterministic: bool, repeats: int) -> dict[str, Any]:
    name = FRAMEWORKS[framework]
    command = [sys.executable, "-m", f"detrain.adapters.{framework}.doctor", str(int(is_deterministic)), str(repeats)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
    if is_deterministic:
        environment |= {name: os.environ.get(name) or value for each in KNOWN for name, value in each.chosen}
    with messages.working("doctor: measuring", "with deterministic ops" if is_deterministic else f"as {name} is"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise FrameworkUnsupported(f"{name} cannot be measured: {tail[0]}", f"install it: pip install 'detrain[{framework}]'")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _said(processes: list[list[str]]) -> dict[str, str]:
    """Return whether repetitions agree within each process, and whether the processes agree."""
    refused = next((digests[0] for digests in processes if digests[0].startswith("refused")), None)
    if refused is not None:
        return {"runs": refused, "processes": refused}
    within = all(len(set(digests)) == 1 for digests in processes)
    between = len({tuple(digests) for digests in processes}) == 1
    return {"runs": "yes" if within else "no", "processes": "yes" if between else "no"}
