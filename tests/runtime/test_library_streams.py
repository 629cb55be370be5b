"""Numba's generators: what is read and set is all that decides what compiled functions draw."""

from __future__ import annotations

import sys
from collections.abc import Callable

import cv2
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import _helperlib as helpers

from detrain.python.inspect.progress import stands_still
from detrain.python.process.library_random import LibraryStreams
from detrain.python.process.random_streams import Streams


@numba.njit
def _normals(count: int) -> np.ndarray:
    return np.array([np.random.normal() for _ in range(count)])


@numba.njit
def _permutation(count: int) -> np.ndarray:
    return np.random.permutation(count)


@pytest.fixture(scope="module")
def streams() -> Streams:
    streams = Streams()
    LibraryStreams(7, streams).on_import("numba")
    return streams


def test_a_compiled_function_keeps_no_state_of_the_program() -> None:
    """Programs with one were refused at each resume."""
    assert stands_still(_normals)


@given(before=st.integers(0, 1300), count=st.integers(1, 1300))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("draw", [_normals, _permutation])
def test_a_stream_that_is_set_back_gives_the_same_again(
    draw: Callable[[int], np.ndarray], before: int, count: int, streams: Streams
) -> None:
    """Odd numbers of Gaussians, too: the spare one is a part of the state, which numba's own reading leaves out."""
    _normals(before)
    state = streams.read()

    first = draw(count)
    _normals(3)
    streams.write(state)

    assert draw(count).tobytes() == first.tobytes()


def test_a_seed_gives_the_numbers_that_numpy_gives(streams: Streams) -> None:
    helpers.rnd_seed(helpers.rnd_get_np_state_ptr(), 7)

    assert _normals(5).tobytes() == np.random.RandomState(7).normal(size=5).tobytes()


def test_the_spare_gaussian_is_numpys(streams: Streams) -> None:
    """The oracle of the layout: NumPy's generator set to what was read goes on as numba's does."""
    _normals(1)
    packed = streams.read()["numba numpy"]
    oracle = Streams()
    own = oracle.read()
    oracle.write({"numpy": packed})
    expected = np.random.normal(size=4)
    oracle.write(own)

    assert _normals(4).tobytes() == expected.tobytes()


def test_calls_that_draw_from_opencvs_generator_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    for name in ("kmeans", "randn", "randShuffle", "randu"):
        monkeypatch.setattr(cv2, name, getattr(cv2, name))
    assert sys.modules["cv2"] is cv2
    LibraryStreams(0, streams).on_import("cv2")
    out = np.zeros(3, np.float32)

    cv2.randn(out, 0, 1)
    cv2.randu(out, 0, 1)
    cv2.randu(out, 0, 1)

    assert dict(streams.drawn) == {"cv2.randn": 1, "cv2.randu": 2}
