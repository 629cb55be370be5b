"""The bit patterns of the dtypes that can be hit: unsigned integers of the same width, bit 0 the least significant.

Every change of a value is made to its pattern, so the payloads of NaNs, signed zeros and denormals are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import FaultInvalid

Patterns = NDArray[np.unsignedinteger[Any]]
Positions = NDArray[np.int64]
Numbers = Sequence[float] | NDArray[np.float64] | NDArray[np.int64]


class DType(msgspec.Struct, frozen=True):
    """A dtype as bits: its `width`; if all `exponent` bits are set, a pattern is INF or NaN (0 for integers)."""

    name: str
    width: int
    exponent: int

    @property
    def unsigned(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of its patterns."""
        return np.dtype(f"u{max(self.width // 8, 1)}")

    def is_finite(self, patterns: Patterns) -> NDArray[np.bool_]:
        """Return for each pattern whether it is a finite number."""
        if not self.exponent:
            return np.ones(patterns.shape, bool)
        mask = self.unsigned.type(self.exponent)
        return np.asarray((patterns & mask) != mask)

    def patterns(self, numbers: Numbers) -> Patterns:
        """Return the patterns of numbers, rounded to nearest even.

        Raises FaultInvalid for a number that the dtype cannot hold.
        """
        wanted = np.asarray(numbers, np.float64)
        if not self.exponent:
            return self._integers(wanted)
        with np.errstate(over="ignore"):
            found = _bfloat16(wanted) if self.name == "bfloat16" else wanted.astype(self.name).view(self.unsigned)
        if np.any(np.isfinite(wanted) & ~self.is_finite(found)):
            raise self._cannot_hold(wanted[np.isfinite(wanted) & ~self.is_finite(found)][0])
        return found

    def numbers(self, patterns: Patterns) -> NDArray[np.float64]:
        """Return the numbers of patterns, exactly (but for the payload of a NaN; an int64 beyond 2^53 is rounded)."""
        with np.errstate(invalid="ignore"):  # signalling NaNs
            if self.name == "bfloat16":
                return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
            return patterns.view(self.name).astype(np.float64)

    def _integers(self, wanted: NDArray[np.float64]) -> Patterns:
        low, high = (0, 1) if self.name == "bool" else (np.iinfo(self.name).min, np.iinfo(self.name).max)
        # Below `high + 1`, a power of two: `high` of an int64 is none of float64's numbers.
        bad = ~((wanted >= float(low)) & (wanted < float(high + 1)) & (wanted == np.floor(wanted)))
        if bad.any():
            raise self._cannot_hold(wanted[bad][0])
        return wanted.astype(self.name).view(self.unsigned)

    def _cannot_hold(self, number: float) -> FaultInvalid:
        return FaultInvalid(f"a {self.name} cannot hold {number:g}", "choose another value, or a site of another dtype")


def _bfloat16(numbers: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round to bfloat16. On the way, float32 is rounded to odd: rounding twice to nearest would go wrong near ties."""
    single = numbers.astype(np.float32)
    word = single.view(np.uint32)
    back = single.astype(np.float64)
    word = np.where(np.abs(back) > np.abs(numbers), word - np.uint32(1), word)  # towards zero
    word = np.where(back != numbers, word | np.uint32(1), word)
    nearest = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    sign = (word >> np.uint32(16)) & np.uint32(0x8000)
    return np.where(np.isnan(numbers), sign | np.uint32(0x7FC0), nearest).astype(np.uint16)


DTYPES: Final = {
    dtype.name: dtype
    for dtype in (
        DType("float64", 64, 0x7FF0_0000_0000_0000),
        DType("float32", 32, 0x7F80_0000),
        DType("float16", 16, 0x7C00),
        DType("bfloat16", 16, 0x7F80),
        DType("int64", 64, 0),
        DType("int32", 32, 0),
        DType("int8", 8, 0),
        DType("uint8", 8, 0),
        DType("bool", 1, 0),
    )
}
"""The dtypes that can be hit, by name. A bool is the lowest bit of a byte; the others do not count."""


def dtype_named(name: str) -> DType:
    """Return the dtype of a name. Raises FaultInvalid for one that cannot be hit."""
    if name not in DTYPES:
        raise FaultInvalid(f"a tensor of dtype {name!r} cannot be hit", f"choose a site of one of these: {', '.join(DTYPES)}")
    return DTYPES[name]


def little_endian(patterns: NDArray[Any]) -> bytes:
    """Return patterns, or positions, as bytes, little-endian whatever the machine's order."""
    return patterns.astype(patterns.dtype.newbyteorder("<")).tobytes()
