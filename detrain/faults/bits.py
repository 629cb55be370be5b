"""The bit patterns of the dtypes that can be hit: unsigned integers of the same width, bit 0 the least significant.

Every change of a value is made to its pattern, so the payloads of NaNs, signed zeros and denormals are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import FaultInvalid

Patterns = NDArray[np.unsignedinteger[Any]]
Positions = NDArray[np.int64]
Numbers = Sequence[float] | NDArray[np.float64] | NDArray[np.int64]


class DType(msgspec.Struct, frozen=True):
    """A dtype as bits: its `width`; for floats the bits of the `exponent`; where NumPy lacks it, its `bias`."""

    name: str
    width: int
    exponent: int = 0
    bias: int = 0
    special: int = 0
    """The bits that are all set in a NaN, where there are no infinities (float8_e4m3fn); 0: those of the exponent are,
    in an INF or NaN.
    """

    @property
    def unsigned(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of its patterns."""
        return np.dtype(f"u{max(self.width // 8, 1)}")

    def is_finite(self, patterns: Patterns) -> NDArray[np.bool_]:
        """Return for each pattern whether it is a finite number."""
        if not self.exponent:
            return np.ones(patterns.shape, bool)
        mask = self.unsigned.type(self.special or self.exponent)
        return np.asarray((patterns & mask) != mask)

    def patterns(self, numbers: Numbers) -> Patterns:
        """Return the patterns of numbers, rounded to nearest even.

        Raises FaultInvalid for a number that the dtype cannot hold.
        """
        wanted = np.asarray(numbers, np.float64)
        if not self.exponent:
            return self._integers(wanted)
        with np.errstate(over="ignore"):
            found = self._nearest(wanted) if self.bias else wanted.astype(self.name).view(self.unsigned)
        if np.any(np.isfinite(wanted) & ~self.is_finite(found)):
            raise self._cannot_hold(wanted[np.isfinite(wanted) & ~self.is_finite(found)][0])
        return found

    def numbers(self, patterns: Patterns) -> NDArray[np.float64]:
        """Return the numbers of patterns, exactly (but for the payload of a NaN; an int64 beyond 2^53 is rounded)."""
        if not self.exponent:
            return self.integers(patterns).astype(np.float64)
        if not self.bias:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                return patterns.view(self.name).astype(np.float64)
        size = patterns & self.unsigned.type(self._sign - 1)
        numbers = np.where(self.is_finite(patterns), _magnitudes(self)[size], np.nan)
        if not self.special:
            numbers[size == self.exponent] = np.inf
        return np.where(patterns & self.unsigned.type(self._sign), -numbers, numbers)

    def integers(self, patterns: Patterns) -> NDArray[np.int64]:
        """Return the numbers of patterns of integers, exactly."""
        if self._is_unsigned:
            return patterns.astype(np.int64)
        free = np.int64(64 - self.width)
        return (patterns.astype(np.uint64).view(np.int64) << free) >> free

    @property
    def _sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def _is_unsigned(self) -> bool:
        return self.name.startswith(("u", "bool"))

    def _nearest(self, wanted: NDArray[np.float64]) -> Patterns:
        """Return the patterns of the nearest floats of a dtype that NumPy lacks."""
        known = _magnitudes(self)
        above = np.clip(np.searchsorted(known, np.abs(wanted)), 1, len(known) - 1)
        middle = (known[above - 1] + known[above]) / 2
        is_above = (np.abs(wanted) > middle) | ((np.abs(wanted) == middle) & (above % 2 == 0))
        infinity, nan = (self.special,) * 2 if self.special else (self.exponent, self.exponent | (self.exponent >> 1))
        size = np.where(np.isnan(wanted), nan, np.minimum(np.where(is_above, above, above - 1), infinity))
        return (size | np.where(np.signbit(wanted), self._sign, 0)).astype(self.unsigned)

    def _integers(self, wanted: NDArray[np.float64]) -> Patterns:
        low, high = (0, 2**self.width) if self._is_unsigned else (-self._sign, self._sign)
        bad = ~((wanted >= float(low)) & (wanted < float(high)) & (wanted == np.floor(wanted)))
        if bad.any():
            raise self._cannot_hold(wanted[bad][0])
        return (wanted.astype(np.int64).view(np.uint64) & np.uint64(2**self.width - 1)).astype(self.unsigned)

    def _cannot_hold(self, number: float) -> FaultInvalid:
        return FaultInvalid(f"a {self.name} cannot hold {number:g}", "choose another value, or a site of another dtype")


@cache
def _magnitudes(dtype: DType) -> NDArray[np.float64]:
    """Return the numbers of all patterns without a sign, and the one above them, as if none were INF or NaN."""
    every = np.arange(2 ** (dtype.width - 1) + 1)
    digits = (dtype.exponent & -dtype.exponent).bit_length() - 1
    exponent, fraction = every >> digits, every & (2**digits - 1)
    found: NDArray[np.float64] = np.ldexp(
        fraction + np.where(exponent, 2.0**digits, 0), np.maximum(exponent, 1) - dtype.bias - digits
    )
    return found


DTYPES: Final = {
    dtype.name: dtype
    for dtype in (
        DType("float64", 64, 0x7FF0_0000_0000_0000),
        DType("float32", 32, 0x7F80_0000),
        DType("float16", 16, 0x7C00),
        DType("bfloat16", 16, 0x7F80, bias=127),
        DType("float8_e5m2", 8, 0x7C, bias=15),
        DType("float8_e4m3fn", 8, 0x78, bias=7, special=0x7F),
        DType("int64", 64),
        DType("int32", 32),
        DType("int8", 8),
        DType("uint8", 8),
        DType("int4", 4),
        DType("uint4", 4),
        DType("bool", 1),
    )
}
"""The dtypes that can be hit, by name; which of them have sites, a framework's adapter decides. An element of fewer
than eight bits is the lowest ones of a byte; the others do not count. The floats of eight bits are those of the Open
Compute Project (OFP8, 2023).
"""


def dtype_named(name: str) -> DType:
    """Return the dtype of a name. Raises FaultInvalid for one that cannot be hit."""
    if name not in DTYPES:
        raise FaultInvalid(f"a tensor of dtype {name!r} cannot be hit", f"choose a site of one of these: {', '.join(DTYPES)}")
    return DTYPES[name]


def little_endian(patterns: NDArray[Any]) -> bytes:
    """Return patterns, or positions, as bytes, little-endian whatever the machine's order."""
    return patterns.astype(patterns.dtype.newbyteorder("<")).tobytes()
