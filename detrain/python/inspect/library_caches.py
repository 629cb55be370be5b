"""The folders in which libraries keep what they compile or write while a program runs: Inductor's kernels, Triton's,
C++ extensions, what numba and Cython have compiled. None of it is the program's: it is made again from the program.
"""

from __future__ import annotations

import os
from typing import Final

_CACHES: Final = (
    ("TORCHINDUCTOR_CACHE_DIR", ""),  # PyTorch's compiler sets it itself, before it writes there
    ("TRITON_CACHE_DIR", "~/.triton/cache"),
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions"),
    ("NUMBA_CACHE_DIR", ""),
    ("CUDA_CACHE_PATH", "~/.nv/ComputeCache"),
    ("JAX_COMPILATION_CACHE_DIR", ""),
    ("", "~/.pyxbld"),  # Cython's pyximport
    ("", "~/.cache/ipython/cython"),
)
"""For each library the variable of the environment that names its folder, and the folder where that is not set."""
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
    named = [os.environ.get(variable) or default for variable, default in _CACHES]
    return [os.path.realpath(os.path.expanduser(name)) for name in named if name]


def _is_in(folder: str, cache: str) -> bool:
    return f"{folder}/".startswith(f"{cache.rstrip('/')}/")
