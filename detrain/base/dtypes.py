"""The names of array dtypes in files. A dtype has a name only if the bytes of its values are the whole values.

NumPy's own dtypes are named as in the npy format (`<f4`, `|S3`; structured dtypes by the JSON of their fields), those
of ml_dtypes (bfloat16, float8_e4m3fn, ...) by their names. Object arrays have no name: their bytes are addresses.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import lru_cache
from typing import Any, Final

import numpy as np

from detrain.base.byte_digests import RECORD

DType = np.dtype[Any]

_SIMPLE: Final = re.compile(r"[<>|=]?[biufcSUVmM]\d+(\[[\w/]+\])?|[|]b1")
_EXTENSION: Final = re.compile(r"(bfloat16|u?int[1248]|float\d+\w*)")


def dtype_name(dtype: DType) -> str | None:
    """Return the name of a dtype, or None if `named_dtype` would not give the same dtype back."""
    return _name_of(dtype, dtype.type is np.record)


@lru_cache(maxsize=256)
def _name_of(dtype: DType, is_record: bool) -> str | None:
    """Return the name of a dtype. `is_record` is a key of the cache: a dtype of records equals the same one without."""
    if dtype.hasobject:
        return None
    if dtype.names is not None or dtype.subdtype is not None:
        name = json.dumps(np.lib.format.dtype_to_descr(dtype))
        if is_record:
            name = f"{RECORD}{name}"
    else:
        name = dtype.name if is_extension(dtype) else dtype.str
    try:
        found = named_dtype(name)
        return name if found == dtype and (found.type is np.record) == is_record else None
    except ValueError:
        return None


def is_extension(dtype: DType) -> bool:
    """Return whether a library (ml_dtypes) has added a dtype to NumPy."""
    return dtype.isbuiltin == 2  # NumPy's number for "registered by a user"


@lru_cache(maxsize=256)
def named_dtype(name: str) -> DType:
    """Return the dtype with a name; inverse of `dtype_name`. Raises ValueError for a text that names no dtype."""
    if _SIMPLE.fullmatch(name):
        return _numpy_dtype(name, name)
    if _EXTENSION.fullmatch(name):
        import ml_dtypes  # every framework with such arrays installs it

        kind = getattr(ml_dtypes, name, None)
        if isinstance(kind, type):
            return np.dtype(kind)
    if name.startswith(RECORD):
        return np.dtype((np.record, named_dtype(name.removeprefix(RECORD))))
    if name.startswith("["):
        with contextlib.suppress(json.JSONDecodeError, TypeError, RecursionError):
            return _numpy_dtype(_checked_fields(json.loads(name)), name)
    raise ValueError(f"{name!r} is not the name of a dtype")


def _numpy_dtype(descr: Any, name: str) -> DType:
    try:
        return np.dtype(np.lib.format.descr_to_dtype(descr))
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{name!r} is not the name of a dtype") from error


def _checked_fields(descr: Any) -> Any:
    """Return fields that were read from JSON in the form that `descr_to_dtype` takes; leaves must be simple dtypes."""
    if isinstance(descr, str):
        if not _SIMPLE.fullmatch(descr):
            raise ValueError(f"{descr!r} is not the name of a dtype")
        return descr
    if not isinstance(descr, list):
        raise ValueError(f"{descr!r} does not describe fields")
    if len(descr) == 2 and isinstance(descr[1], list) and all(isinstance(n, int) for n in descr[1]) and descr[1]:
        return (_checked_fields(descr[0]), tuple(descr[1]))
    fields = []
    for field in descr:
        title, form, *shape = field
        fields.append((tuple(title) if isinstance(title, list) else title, _checked_fields(form), *map(tuple, shape)))
    return fields
