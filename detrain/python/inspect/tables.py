"""Tables: frames and series of pandas, into which programs write measurements, and sparse matrices of scipy. No
attribute of pandas' objects shows their content. Timestamps and durations of pandas are handled here, too.

A table that has not changed since the loop was entered stays as the process has it. A changed one is captured by its
blocks of memory, so that sums go over the same numbers in the same order. A table that cannot be made again, because of
pandas before 3 or an unusual index, is named as lost.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from detrain.base.digest import digest_value
from detrain.base.dtypes import dtype_name
from detrain.base.plain_types import ARRAYS, SCALARS
from detrain.python.inspect.object_graph import LARGE_BYTES

_SPARSE: Final = frozenset(
    f"{form}_{kind}" for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil") for kind in ("array", "matrix")
)
TABLES: Final = frozenset({"pandas.DataFrame", "pandas.Series", *(f"scipy.sparse.{name}" for name in _SPARSE)})
MOMENTS: Final = ("pandas.Timestamp", "pandas.Timedelta", "pandas.NaT")
_PARTS: Final = (*ARRAYS, np.dtype, *SCALARS)
"""Types of the attributes of a sparse matrix."""


def is_table(value: object) -> bool:
    """Return whether an object is a frame or a series of pandas, or a sparse matrix of scipy."""
    pandas = sys.modules.get("pandas")
    is_of_pandas = pandas is not None and type(value) in (getattr(pandas, "DataFrame", None), getattr(pandas, "Series", None))
    return is_of_pandas or _is_sparse(value)


def _is_sparse(value: object) -> bool:
    cls = type(value)
    return cls.__name__ in _SPARSE and getattr(sys.modules.get("scipy.sparse"), cls.__name__, None) is cls


def is_large(value: Any) -> bool:
    """Return whether a table is too large to be stored as often as there are checkpoints."""
    if _is_sparse(value):
        return sum(each.nbytes for each in _flat(vars(value)) if isinstance(each, np.ndarray)) > LARGE_BYTES
    return bool(sum(block.values.nbytes for block in value._mgr.blocks) > LARGE_BYTES)


def content(value: Any) -> object:
    """Return a value to be compared for equality: it differs if a table has changed."""
    parts = _describe(value)
    flat = [] if parts is None else _flat(parts)
    arrays = [each for each in flat if isinstance(each, np.ndarray)]
    cells = [cell for array in arrays if array.dtype == object for cell in array.reshape(-1).tolist()]
    is_known = parts is not None and {type(cell) for cell in cells} <= SCALARS
    return digest_value(flat, lambda _: None) if is_known else object()


def table_parts(value: Any) -> tuple[str, list[Any]] | None:
    """Return the kind and the parts of a table, or None if it could not be made again from them."""
    kind, parts = f"{'scipy.sparse' if _is_sparse(value) else 'pandas'}.{type(value).__name__}", _describe(value)
    if parts is None:
        return None
    parts = _copied(parts)
    try:
        made = make_table(kind, parts)
    except Exception:  # an edge: pandas may refuse any input
        return None
    return (kind, parts) if _is_equal(made, value) else None


def make_table(kind: str, parts: list[Any]) -> Any:
    """Return the table with these parts."""
    if kind.startswith("scipy."):
        return _make_sparse(kind.removeprefix("scipy.sparse."), *parts)
    import pandas as pd
    from pandas.api.internals import create_dataframe_from_blocks

    cells, index, columns, attrs = parts
    if kind == "pandas.Series":
        [(values, _place)] = cells
        made = pd.Series(_from_cells(values), index=_from_axis(index), name=columns, copy=True)
    else:
        blocks = [(_from_cells(values, copy=True), place) for values, place in cells]
        made = create_dataframe_from_blocks(blocks, index=_from_axis(index), columns=_from_axis(columns))
    made.attrs.update(attrs)
    return made


def become(current: Any, made: Any) -> None:
    """Give a table the content of another table of its kind."""
    if _is_sparse(current):
        vars(current).clear()
        vars(current).update(vars(made))
        return
    current._update_inplace(made)
    if type(current).__name__ == "Series":
        current.name = made.name
    current.attrs.clear()
    current.attrs.update(made.attrs)


def is_moment(cls: type) -> bool:
    """Return whether a class is pandas' class of timestamps, of durations or of `NaT`."""
    pandas = sys.modules.get("pandas")
    known = [getattr(pandas, name, None) for name in ("Timestamp", "Timedelta")]
    return pandas is not None and (cls in known or cls is type(getattr(pandas, "NaT", None)))


def moment_parts(value: Any) -> list[Any] | None:
    """Return the parts of a timestamp or a duration; None if it could not be made again from them."""
    if value is sys.modules["pandas"].NaT:
        return []
    unit = np.datetime_data(value.asm8.dtype)[0]
    parts = [int(value.asm8.view(np.int64)), unit, getattr(value, "tz", None)]
    made = make_moment(f"pandas.{type(value).__name__}", *parts)
    return parts if getattr(made, "fold", 0) == getattr(value, "fold", 0) else None


def make_moment(kind: str, *parts: Any) -> Any:
    """Return the timestamp or the duration with these parts: the number of units (from 1970, UTC), the unit, the time
    zone.
    """
    import pandas as pd

    if kind == "pandas.NaT":
        return pd.NaT
    number, unit, zone = parts
    if kind == "pandas.Timedelta":
        return pd.Timedelta(np.timedelta64(number, unit))
    made = pd.Timestamp(np.datetime64(number, unit))
    return made if zone is None else made.tz_localize("UTC").tz_convert(zone)


def _make_sparse(name: str, attributes: dict[str, Any]) -> Any:
    cls = getattr(sys.modules["scipy.sparse"], name)
    made = cls.__new__(cls)
    vars(made).update(attributes)
    return made


def _describe(value: Any) -> list[Any] | None:
    """Return [blocks of cells with the numbers of their columns, index, columns or the series' name, attributes],
    without copies; for a sparse matrix its attributes."""
    if _is_sparse(value):
        return [dict(vars(value))]
    is_series = type(value).__name__ == "Series"
    try:
        blocks = [(block.values, None if is_series else np.array(block.mgr_locs.as_array, np.int64)) for block in value._mgr.blocks]
        cells = [(_to_cells(values), place) for values, place in blocks]
        return [cells, _to_axis(value.index), value.name if is_series else _to_axis(value.columns), dict(value.attrs)]
    except (AttributeError, TypeError, ValueError):
        return None


def _to_cells(values: Any) -> tuple[str, Any]:
    """Return the name of an array's dtype, and its values as an array of NumPy."""
    name = str(values.dtype)
    if isinstance(values, np.ndarray) and (values.dtype == object or dtype_name(values.dtype) is not None):
        return name, values
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "mM":
        return name, np.asarray(values).view(np.int64)
    return name, np.asarray(values, dtype=object)


def _from_cells(cells: tuple[str, Any], *, copy: bool = False) -> Any:
    import pandas as pd

    name, values = cells
    if values.dtype != object and values.dtype.name == name:
        return np.array(values, copy=True, order="K") if copy else values
    if name.startswith(("datetime64[", "timedelta64[")) and "," not in name:
        return pd.array(values.view(name), dtype=name)
    return np.array(values, copy=True, order="K") if name == "object" else pd.array(values, dtype=name)


def _to_axis(index: Any) -> list[Any]:
    kind = type(index).__name__
    if kind == "RangeIndex":
        return [kind, index.start, index.stop, index.step, index.name]
    if kind == "MultiIndex":
        codes = [np.asarray(each, np.int64) for each in index.codes]
        return [kind, [_to_axis(each) for each in index.levels], codes, list(index.names), index.sortorder]
    freq = getattr(index, "freq", None)
    if kind == "PeriodIndex" or not (freq is None or kind in ("DatetimeIndex", "TimedeltaIndex")):
        raise ValueError("an index of this kind is not described")
    return [kind, _to_cells(index._data), index.name, None if freq is None else freq.freqstr]


def _from_axis(axis: list[Any]) -> Any:
    import pandas as pd

    if axis[0] == "RangeIndex":
        return pd.RangeIndex(*axis[1:4], name=axis[4])
    if axis[0] == "MultiIndex":
        _kind, levels, codes, names, sortorder = axis
        return pd.MultiIndex([_from_axis(each) for each in levels], codes, sortorder, names)
    _kind, (name, values), label, *freq = axis
    made = pd.Index(_from_cells((name, values)), dtype=name, name=label, copy=True)
    if freq and freq[0] is not None:  # checkpoints of earlier versions have none
        made.freq = freq[0]
    return made


def _flat(parts: Any) -> list[Any]:
    if isinstance(parts, dict):
        parts = list(parts.items())
    return [each for part in parts for each in _flat(part)] if isinstance(parts, list | tuple) else [parts]


def _copied(parts: Any) -> Any:
    if isinstance(parts, np.ndarray):
        return np.array(parts, copy=True, order="K")
    if isinstance(parts, dict):
        return {key: _copied(part) for key, part in parts.items()}
    return type(parts)(map(_copied, parts)) if isinstance(parts, list | tuple) else parts


def _is_equal(made: Any, value: Any) -> bool:
    """Return whether a table that was made again equals the first: labels, types of axes and columns, cells."""
    if _is_sparse(value):
        return all(isinstance(part, _PARTS) for part in _flat(_describe(value)))
    forms = [
        [(type(axis), str(axis.dtype), axis.name, axis.names, getattr(axis, "freq", None)) for axis in table.axes]
        for table in (made, value)
    ]
    dtypes = [list(map(str, [table.dtype] if table.ndim == 1 else table.dtypes)) for table in (made, value)]
    return forms[0] == forms[1] and dtypes[0] == dtypes[1] and bool(made.equals(value))
