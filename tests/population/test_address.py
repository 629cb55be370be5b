"""IOA: counts of addresses against enumeration, and what a fault does to a tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import FaultInvalid
from detrain.faults.plan import trial_rng
from detrain.faults.population.address import draw_address, inside, masks, misplaced
from tests.population import made


@given(st.integers(1, 300), st.sampled_from([1, 2]))
def test_addresses_that_stay_inside_are_counted_as_by_enumeration(elements: int, bits: int) -> None:
    width = next(width for width in range(12) if 1 << width >= elements)
    each = [((1 << bits) - 1) << first for first in range(width) if first + bits <= width]
    stays = sum(index ^ mask < elements for mask in each for index in range(elements))

    assert masks(elements, bits) == each
    assert inside(elements, bits) == (stays, elements * len(each))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), st.integers(0, 1000), st.sampled_from(["FLIP:1", "ADJ:2"]))
def test_a_value_lands_elsewhere_and_leaves_zero(shape: tuple[int, ...], number: int, model: str) -> None:
    site = made.site("add", shape)
    elements = int(np.prod(shape))
    if not inside(elements, 1 if model == "FLIP:1" else 2)[0]:
        with pytest.raises(FaultInvalid, match="no address"):
            draw_address(site, model, 0, trial_rng(1, number))
        return
    drawn = draw_address(site, model, 0, trial_rng(1, number))
    drawn.check()

    bits = np.arange(1, elements + 1, dtype=np.int32)
    values = (bits[drawn.array("sources")] & drawn.array("keep")) ^ drawn.array("flip")
    after = bits.copy()
    after[drawn.array("positions")] = values

    meant = int(drawn.array("sources")[0])
    landed = next(int(each) for each in drawn.array("positions") if each != meant)
    expected = bits.copy()
    expected[landed], expected[meant] = bits[meant], 0
    assert after.tolist() == expected.tolist()
    difference = f"{meant ^ landed:b}".strip("0")
    assert difference == ("1" if model == "FLIP:1" else "11")


def test_each_pair_that_stays_inside_is_drawn_as_often() -> None:
    site = made.site("add", (3,))
    pairs = [
        (int(one.array("sources")[0]), one.array("positions").tolist())
        for number in range(3000)
        for one in [draw_address(site, "FLIP:1", 0, trial_rng(2, number))]
    ]

    counts = {str(pair): pairs.count(pair) for pair in pairs}
    assert len(counts) == 4  # 0-1, 1-0, 0-2, 2-0; 1 and 2 have no other partner inside
    assert all(600 < count < 900 for count in counts.values())


def test_bools_and_bytes_keep_their_bits() -> None:
    drawn = misplaced(made.site("eq", (4,), dtype="bool"), 2, 3, 0)

    values = (np.array([1, 0, 1, 0], np.int8)[drawn.array("sources")] & drawn.array("keep")) ^ drawn.array("flip")
    assert values.tolist() == [0, 1]


def test_another_model_is_refused() -> None:
    with pytest.raises(FaultInvalid, match="no model of addresses"):
        draw_address(made.site("add", (4,)), "ZERO", 0, trial_rng(0, 0))
