"""The other Pythons of this machine: standard library only, for the parts of the runtime that depend on the
interpreter.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = [version for version in ("3.12", "3.13", "3.14") if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]


def find(version):
    """Return the path of an interpreter, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for path in filter(None, candidates):
        said = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if said.stdout.split() == version.split("."):
            return str(path)
    return None


def run_module(version, *arguments):
    """Run `python -m ...` under another version in the repository's root; skip the test if that is not installed."""
    python = find(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    return subprocess.run([python, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
