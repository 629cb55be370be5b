"""Digests: equal values have equal ones, and every bit, dtype and shape counts."""

import collections
import copy
import dataclasses
import struct
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.base import digest as digests
from detrain.base.byte_digests import digest_bytes, digest_source
from detrain.base.digest import digest_array, digest_value, raw_bytes
from detrain.base.dtypes import dtype_name


def no_tensor(value):
    return None


def digest(value):
    return digest_value(value, no_tensor)


arrays = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(), hnp.unicode_string_dtypes()), hnp.array_shapes(min_dims=0, min_side=0)
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(st.characters()), st.binary()
)
values = st.recursive(
    st.one_of(scalars, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def nan_with_payload(payload):
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]


_GAPS = np.dtype([("a", "i1"), ("b", [("c", "<f8"), ("d", "i1", (2, 3))], 2), ("e", ">g"), ("f", "g")], align=True)


def _numbers_in(memory: bytes, dtype: np.dtype) -> np.ndarray:
    """Return an array in this memory whose numbers are the same, whatever the memory was."""
    array = np.frombuffer(bytearray(memory), dtype)
    leaves = [array] if dtype.names is None else [array["a"], array["b"]["c"], array["b"]["d"], array["e"], array["f"]]
    for leaf in leaves:
        leaf[...] = np.arange(leaf.size).reshape(leaf.shape) * leaf.dtype.type(7) / 3
    return array


@pytest.mark.parametrize("dtype", [_GAPS, np.dtype("g"), np.dtype(">g"), np.dtype("G")])
def test_bytes_that_belong_to_no_value_do_not_count(dtype: np.dtype) -> None:
    """A copy of `table[["x", "y"]]` had another digest each time."""
    one, other = (_numbers_in(byte * (3 * dtype.itemsize), dtype) for byte in (b"\x00", b"\xa5"))

    assert digest_array(other) == digest_array(one)
    assert bytes(raw_bytes(other)) == bytes(raw_bytes(one))
    again = np.frombuffer(bytes(raw_bytes(other)), dtype)
    assert repr(again) == repr(one)
    assert digest_array(again) == digest_array(one)


def test_records_and_structures_of_equal_bytes_have_one_digest_whichever_is_asked_first() -> None:
    for kind in ("a", "b"):
        structure = np.zeros(2, [(kind, "<i4")])
        records = structure.view(np.dtype((np.record, structure.dtype)))
        pair = (records, structure) if kind == "a" else (structure, records)

        found = set()
        for each in pair:
            digests._header.cache_clear()  # equal dtypes share what was found for the first
            found.add(digest_array(each))
        assert len(found) == 1
        assert dtype_name(records.dtype) != dtype_name(structure.dtype)


def test_the_digest_of_bytes_is_xxh3_128_as_the_reference_library_computes_it():
    assert digest_bytes(b"detrain") == xxhash.xxh3_128(b"detrain").hexdigest()


@given(values)
def test_a_copy_has_the_same_digest(value):
    assert digest(value) == digest(copy.deepcopy(value))


@given(arrays, st.randoms(use_true_random=False))
def test_every_flipped_bit_of_an_array_changes_its_digest(array, random):
    assume(array.nbytes)
    data = bytearray(array.tobytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    other = np.frombuffer(bytes(data), array.dtype).reshape(array.shape)
    assert digest_array(other) != digest_array(array)


@given(arrays)
def test_raw_bytes_are_the_bytes_in_c_order(array):
    assert bytes(raw_bytes(array)) == array.tobytes()


@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=2)))
def test_memory_order_does_not_count(array):
    assert digest_array(np.asfortranarray(array)) == digest_array(array)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (nan_with_payload(1), nan_with_payload(2)),
        (complex(0.0, nan_with_payload(1)), complex(0.0, nan_with_payload(2))),
        (1, True),
        (1, 1.0),
        (0, None),
        ("1", b"1"),
        ("a", "a\0"),
        ([1], (1,)),
        ([1, [2]], [1, 2]),
        ([[], []], [[[]]]),
        (["ab"], ["a", "b"]),
        ({"a": 1}, {"a": 2}),
        ({1: 2}, {2: 1}),
        ([], {}),
        ({1, 2}, {1, 3}),
        (collections.deque([1]), collections.deque([2])),
        ([10**5000], [10**5000 + 1]),
        (np.float32(1), np.float64(1)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros((0, 3)), np.zeros((3, 0))),
        (np.zeros(2, "<i4"), np.zeros(2, ">i4")),
        (np.zeros(2, ml_dtypes.float8_e5m2), np.zeros(2, ml_dtypes.float8_e4m3fn)),
        (np.zeros(2, [("a", "f4"), ("b", "f4")]), np.zeros(2, [("a", "f4"), ("c", "f4")])),
        (np.array(["a", 1.0], object), np.array(["a", 2.0], object)),
        (np.array([0.0], object), np.array([-0.0], object)),
    ],
)
def test_values_that_differ_have_digests_that_differ(one, other):
    assert digest(one) != digest(other)


@dataclasses.dataclass
class Batch:
    x: object
    y: object


def test_the_fields_of_a_dataclass_count():
    assert digest(Batch([1], [2])) == digest(Batch([1], [2]))
    assert digest(Batch([1], [2])) != digest(Batch([1], [3]))


@given(st.sets(st.text(max_size=3)), st.randoms(use_true_random=False))
def test_the_order_of_a_set_does_not_count(items, random):
    assert digest(set(random.sample(sorted(items), len(items)))) == digest(items)


def test_objects_in_an_object_array_count_by_their_type_not_their_address():
    assert digest_array(np.array([object()], object)) == digest_array(np.array([object()], object))


def test_a_value_that_contains_itself_has_a_digest():
    loop: list[object] = []
    loop.append(loop)
    assert digest(loop) == digest(loop)


def test_a_tensor_counts_as_the_array_it_holds():
    class Tensor:
        pass

    held = np.arange(3.0)
    assert digest_value(Tensor(), lambda _: held) == digest_value(held, no_tensor)


def test_of_an_object_without_readable_data_only_the_type_counts():
    assert digest(object()) == digest(object())


@pytest.mark.parametrize("same", ["x = 1  # why\n", "\n\nx = 1\n", "x=1"])
def test_comments_and_blank_lines_of_a_source_do_not_count(same):
    assert digest_source(same.encode()) == digest_source(b"x = 1\n")


@pytest.mark.parametrize("other", [b"x = 2\n", b"y = 1\n", b"x = 1; x\n", b"x = (\n", b"\0"])
def test_what_python_sees_of_a_source_counts(other):
    assert digest_source(other) != digest_source(b"x = 1\n")


def test_a_mapping_that_does_not_say_what_it_holds_has_a_digest(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = [1.0]

    assert digest_value([file], lambda _: None) == digest_value([file], lambda _: None) != digest_value([], lambda _: None)
