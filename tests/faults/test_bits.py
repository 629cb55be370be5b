"""Bit patterns: numbers to patterns and back, against NumPy, and against exact fractions for bfloat16."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DTYPES, dtype_named

BFLOAT16 = DTYPES["bfloat16"]
OTHERS = ("bfloat16", "float8_e5m2", "float8_e4m3fn")
"""Floats that NumPy lacks."""


def bfloat16_value(word: int) -> Fraction:
    """The number of a finite bfloat16 pattern, by its definition."""
    sign, exponent, fraction = word >> 15, (word >> 7) & 0xFF, word & 0x7F
    scaled = Fraction(fraction if exponent == 0 else fraction + 128, 128) * Fraction(2) ** (max(exponent, 1) - 127)
    return -scaled if sign else scaled


@given(st.floats(-3e38, 3e38))
def test_a_number_is_rounded_to_the_nearest_bfloat16_and_ties_go_to_even(number: float) -> None:
    word = int(BFLOAT16.patterns([number])[0])

    distance = abs(bfloat16_value(word) - Fraction(number))
    for other in (word - 1, word + 1):
        if 0 <= other <= 0xFFFF and (other & 0x7F80) != 0x7F80:
            farther = abs(bfloat16_value(other) - Fraction(number))
            assert distance < farther or (distance == farther and word % 2 == 0)


def test_rounding_to_bfloat16_does_not_round_twice() -> None:
    just_above_a_tie = 1 + 2.0**-8 + 2.0**-40  # float32 alone would make a tie of it, and the tie would go down to 1

    assert BFLOAT16.numbers(BFLOAT16.patterns([just_above_a_tie]))[0] == 1 + 2.0**-7


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
@given(number=st.floats(allow_nan=False))
def test_a_number_has_the_pattern_that_numpy_gives_it_or_is_refused(name: str, number: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.array([number]).astype(name)

    if np.isfinite(number) and not np.isfinite(expected[0]):
        with pytest.raises(FaultInvalid, match=f"{name} cannot hold"):
            DTYPES[name].patterns([number])
    else:
        assert DTYPES[name].patterns([number]).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("int8", 128),
        ("int8", -129),
        ("int8", 0.5),
        ("int32", 2.0**31),
        ("int64", 2.0**63),
        ("uint8", -1),
        ("int4", 8),
        ("int4", -9),
        ("uint4", -1),
        ("uint4", 16),
        ("bool", 2),
        ("int32", np.nan),
    ],
)
def test_a_number_that_an_integer_cannot_hold_is_refused(name: str, number: float) -> None:
    with pytest.raises(FaultInvalid, match=f"{name} cannot hold"):
        DTYPES[name].patterns([number])


def test_the_least_int64_and_the_values_of_a_bool_have_patterns() -> None:
    assert DTYPES["int64"].patterns([-(2.0**63)]).tolist() == [1 << 63]
    assert DTYPES["bool"].patterns([0, 1]).tolist() == [0, 1]
    assert DTYPES["bool"].numbers(np.array([0, 1], np.uint8)).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "int32", "uint8"])
def test_an_integer_has_its_twos_complement(name: str) -> None:
    least, most = (int(each) for each in (ml_dtypes.iinfo(name).min, ml_dtypes.iinfo(name).max))
    numbers = np.array([least, max(least, -1), 0, 1, most])

    patterns = DTYPES[name].patterns(numbers)

    assert [int(p) for p in patterns] == [int(n) % 2 ** DTYPES[name].width for n in numbers]
    assert DTYPES[name].numbers(patterns).tolist() == DTYPES[name].integers(patterns).tolist() == numbers.tolist()


@pytest.mark.parametrize("name", ["float16", *OTHERS])
def test_exactly_the_patterns_of_numbers_are_finite_and_numbers_give_them_back(name: str) -> None:
    dtype = DTYPES[name]
    every = np.arange(1 << dtype.width, dtype=np.uint32).astype(dtype.unsigned)

    numbers = dtype.numbers(every)

    assert (np.isfinite(numbers) == dtype.is_finite(every)).all()
    assert (dtype.patterns(numbers[~np.isnan(numbers)]) == every[~np.isnan(numbers)]).all()


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_that_numpy_lacks_are_those_of_ml_dtypes(name: str) -> None:
    dtype = DTYPES[name]
    every = np.arange(1 << dtype.width, dtype=np.uint32).astype(dtype.unsigned)

    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = every.view(getattr(ml_dtypes, name)).astype(np.float64)
    assert np.array_equal(dtype.numbers(every), expected, equal_nan=True)
    assert np.array_equal(np.signbit(dtype.numbers(every)), np.signbit(expected))


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
@given(number=st.floats(-1000, 1000) | st.sampled_from([17.0, 19.0, 448.0, 464.0, 465.0, 61440.0, 61439.9, np.inf, np.nan, -0.0]))
def test_a_number_is_rounded_to_eight_bits_as_by_ml_dtypes_or_refused(name: str, number: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.array([number]).astype(getattr(ml_dtypes, name))

    if np.isfinite(number) and not np.isfinite(expected[0].astype(np.float64)):
        with pytest.raises(FaultInvalid, match=f"{name} cannot hold"):
            DTYPES[name].patterns([number])
    else:
        assert DTYPES[name].patterns([number]).tobytes() == expected.tobytes()


def test_a_dtype_that_cannot_be_hit_is_refused_with_those_that_can() -> None:
    with pytest.raises(FaultInvalid, match=r"'string' cannot be hit\n.*bfloat16"):
        dtype_named("string")
