"""The copies that are written in the background: they have the bits of the state, and change with it no more."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.runtime.digest import Array
from detrain.store.writer import Writer

arrays = hnp.arrays(st.sampled_from(["f4", "i8", "?", "f8"]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
states = st.dictionaries(st.sampled_from("abc"), arrays, max_size=3)


@given(st.lists(states, min_size=1, max_size=4))
def test_copies_have_the_bits_of_each_state_in_turn(turns: list[dict[str, Array]]) -> None:
    writer = Writer()
    for state in turns:
        for arrays in (state, {key: array.T for key, array in state.items()}):
            copies = writer.copy(arrays)
            assert [(key, copy.dtype, copy.shape, copy.tobytes()) for key, copy in copies.items()] == [
                (key, array.dtype, array.shape, array.tobytes()) for key, array in arrays.items()
            ]


def test_types_of_all_kinds_are_copied_bit_for_bit() -> None:
    bits = np.arange(240, dtype=np.uint8)
    kinds = [
        "f2",
        "f4",
        "c16",
        "|V5",
        "|S3",
        "M8[s]",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        np.dtype([("a", "u1"), ("b", "f4")]),
    ]
    state = {str(number): bits.view(kind) for number, kind in enumerate(kinds)}

    copies = Writer().copy(state)

    assert {key: copy.tobytes() for key, copy in copies.items()} == {key: bits.tobytes() for key in state}


def test_a_copy_lies_elsewhere_and_its_memory_is_used_again_once_it_is_written() -> None:
    writer, state, release = Writer(), {"a": np.zeros(5)}, threading.Event()
    seen = []
    first = writer.copy(state)
    writer.write(lambda: (release.wait(10), seen.append(first["a"].copy()))[1], is_large=True)
    state["a"] += 1
    release.set()
    second = writer.copy(state)

    assert seen[0].tolist() == [0] * 5
    assert second["a"] is first["a"]
    assert second["a"].tolist() == [1] * 5
    assert not np.shares_memory(second["a"], state["a"])
