"""Random streams: a state that is set back gives the same draws, spare Gaussians included."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.base.errors import Diverged, NotCapturable
from detrain.python.process.random_streams import (
    NumpyStream,
    PythonStream,
    RngState,
    Streams,
    WordStream,
    mark_of_numpy,
    mark_of_python,
)


@pytest.fixture(autouse=True)
def _global_streams_are_left_as_they_were():
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def bits(value):
    return None if value is None else struct.pack("<d", value)


python_draws = st.lists(st.sampled_from(["random", "gauss", "normal", "shuffle", "bits", "choice"]), max_size=9)
numpy_draws = st.lists(st.sampled_from(["rand", "normal", "randn", "permutation", "bytes", "gamma"]), max_size=9)


def draw_python(source, kinds):
    items = list(range(7))
    acts = {
        "random": source.random,
        "gauss": lambda: source.gauss(0, 1),
        "normal": lambda: source.normalvariate(0, 1),
        "shuffle": lambda: source.shuffle(items) or list(items),
        "bits": lambda: source.getrandbits(77),
        "choice": lambda: source.choice(items),
    }
    return [acts[kind]() for kind in kinds]


def draw_numpy(source, kinds):
    acts = {
        "rand": source.rand,
        "normal": lambda: source.normal(0, 1),
        "randn": lambda: source.randn(3).tolist(),
        "permutation": lambda: source.permutation(7).tolist(),
        "bytes": lambda: source.bytes(5),
        "gamma": lambda: source.gamma(0.5),
    }
    return [acts[kind]() for kind in kinds]


@given(st.lists(st.sampled_from(["draw", "normal", "keep", "back", "read", "seed"]), max_size=30))
def test_a_stream_that_is_read_again_and_again_says_what_one_says_that_is_read_for_the_first_time(acts):
    """Also where the spare Gaussian alone has moved, or comes back, and no word of the state is another."""
    python, numpy = random.Random(3), np.random.RandomState(3)
    kept = python.getstate(), numpy.get_state()
    streams = PythonStream(python), NumpyStream(numpy)

    for act in acts:
        if act == "draw":
            python.random(), numpy.rand()
        elif act == "normal":
            python.gauss(0, 1), numpy.normal()
        elif act == "keep":
            kept = python.getstate(), numpy.get_state()
        elif act == "back":
            python.setstate(kept[0]), numpy.set_state(kept[1])
        elif act == "seed":
            python.seed(3), numpy.seed(3)
        if act == "read":
            _version, words, gauss = python.getstate()
            state = numpy.get_state(legacy=False)
            key = np.append(state["state"]["key"], np.uint32(state["state"]["pos"]))
            assert streams[0].pack() == RngState(np.array(words, np.uint32), gauss).pack()
            assert streams[1].pack() == RngState(key, state["gauss"] if state["has_gauss"] else None).pack()


def test_the_memory_of_generators_is_where_it_is_looked_for():
    assert mark_of_python(random.Random(1)) is not None
    assert mark_of_numpy(np.random.RandomState(1)) is not None


@given(hnp.arrays(np.uint32, 625, elements=st.integers(0, 2**32 - 1), fill=st.just(7)), st.none() | st.floats())
def test_pack_then_unpack_is_the_identity(words, gauss):
    state = RngState.unpack(RngState(words, gauss).pack())
    assert np.array_equal(state.words, words)
    assert state.words.dtype == np.uint32
    assert bits(state.gauss) == bits(gauss)


def test_packing_is_little_endian_on_every_machine():
    packed = RngState(np.array([1, 2], np.uint32), None).pack()
    assert packed == struct.pack("<HBd", 2, 0, 0.0) + struct.pack("<II", 1, 2)


@given(st.integers(0, 2**32), python_draws, python_draws, python_draws)
def test_a_python_stream_that_is_set_back_draws_the_same(seed, before, between, after):
    source = random.Random(seed)
    stream = PythonStream(source)
    draw_python(source, before)
    state = RngState.unpack(stream.get().pack())
    expected = draw_python(source, after)
    draw_python(source, between)
    stream.set(state)
    assert draw_python(source, after) == expected


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64])
@given(seed=st.integers(0, 2**32 - 1), before=numpy_draws, between=numpy_draws, after=numpy_draws)
def test_a_numpy_stream_that_is_set_back_draws_the_same(kind, seed, before, between, after):
    source = np.random.RandomState(kind(seed))
    stream = NumpyStream(source)
    draw_numpy(source, before)
    state = RngState.unpack(stream.get().pack())
    expected = draw_numpy(source, after)
    draw_numpy(source, between)
    stream.set(state)
    assert draw_numpy(source, after) == expected


def test_a_stream_over_another_bit_generator_than_it_was_is_refused():
    twister, other = NumpyStream(np.random.RandomState(1)), NumpyStream(np.random.RandomState(np.random.PCG64(1)))
    with pytest.raises(Diverged, match="draws from PCG64; it drew from MT19937"):
        other.set(twister.get())
    with pytest.raises(Diverged, match="draws from MT19937; it drew from PCG64"):
        twister.set(other.get())


def test_a_bit_generator_of_others_is_refused():
    class Own:
        def get_state(self, *, legacy):
            return {"bit_generator": "Xoroshiro128", "state": {}}

    with pytest.raises(NotCapturable, match="Xoroshiro128, which detrain does not know"):
        NumpyStream(Own()).get()


@pytest.mark.parametrize("gausses_before", [0, 1, 2, 3])
def test_the_global_streams_keep_their_spare_gaussian(gausses_before):
    streams = Streams()
    for _ in range(gausses_before):
        random.gauss(0, 1)
        np.random.normal()
    states = streams.read()
    expected = [random.gauss(0, 1), random.gauss(0, 1), np.random.normal(), np.random.normal()]
    random.seed(5)
    np.random.seed(5)
    streams.write(states)
    assert [random.gauss(0, 1), random.gauss(0, 1), np.random.normal(), np.random.normal()] == expected


def test_reading_draws_nothing():
    streams = Streams()
    assert streams.read() == streams.read()


def test_what_was_set_is_what_is_read():
    streams = Streams()
    random.gauss(0, 1)
    np.random.normal()
    states = streams.read()
    streams.write(states)
    assert streams.read() == states


def test_the_streams_of_a_framework_that_is_not_there_yet_are_left_alone():
    streams = Streams()
    states = streams.read()
    streams.write({"tensorflow": b"anything"})
    assert streams.read() == states


def test_a_stream_can_be_set_alone():
    streams = Streams()
    states = streams.read()
    random.random()
    np.random.rand()
    moved = streams.read()
    streams.write({"python": states["python"]})
    assert streams.read() == {"python": states["python"], "numpy": moved["numpy"]}


def test_the_stream_of_a_framework_is_read_and_written_by_its_name():
    class Own(WordStream):
        def __init__(self):
            self.state = RngState(np.arange(4, dtype=np.uint32), 0.5)

        def get(self):
            return self.state

        def set(self, state):
            self.state = state

    own, streams = Own(), Streams()
    streams.add("own", own)
    states = streams.read()
    own.state = RngState(np.zeros(4, np.uint32), None)
    streams.write({"own": states["own"]})
    assert own.state.words.tolist() == [0, 1, 2, 3]
    assert own.state.gauss == 0.5
