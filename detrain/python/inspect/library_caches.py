"""The folders in which libraries keep what they compile or write while a program runs: Inductor's kernels, Triton's,
C++ extensions, what numba and Cython have compiled. None of it is the program's: it is made again from the program.
"""

from __future__ import annotations

import os
from typing import Final

from detrain.base.libraries import libraries

_BESIDE: Final = "__pycache__"
"""What lies beside the source that it was compiled from: Python's own modules, numba's and cffi's."""


def is_of_cache(folder: str, program: str) -> bool:
    """Return whether a folder is inside of one of these. Paths are absolute, without links; `program` is the folder of
    the program's entry.

    A cache that the program itself lies in counts for none (`TORCHINDUCTOR_CACHE_DIR=/tmp`): what a library writes
    there could not be told from the program's.
    """
    return _BESIDE in folder.split("/") or any(_is_in(folder, each) and not _is_in(program, each) for each in _caches())


def _caches() -> list[str]:
    caches = (cache for each in libraries().values() for cache in each.caches)
    named = [os.environ.get(variable) or default for variable, default in caches]
    return [os.path.realpath(os.path.expanduser(name)) for name in named if name]


def _is_in(folder: str, cache: str) -> bool:
    return f"{folder}/".startswith(f"{cache.rstrip('/')}/")
