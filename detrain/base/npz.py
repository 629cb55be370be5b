"""NumPy's archives (`.npz`), with any names."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrain.base.digest import Array


def write_npz(sink: Any, arrays: Mapping[str, Array]) -> None:
    """Write arrays into a binary file, as `np.savez` does, which takes none with the name of one of its parameters."""
    with zipfile.ZipFile(sink, "w") as archive:
        for name, array in arrays.items():
            part: Any
            with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.asanyarray(array), allow_pickle=False)
