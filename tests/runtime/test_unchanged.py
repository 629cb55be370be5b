"""Whether anything that a loader's code reads has changed since it was looked at."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from detrain.python.inspect.progress import is_plain_iterator
from detrain.python.loaders.unchanged import Reads

DATA = np.arange(12.0)
WEIGHTS = {"scale": 1.0}
ORDER = [3, 1, 2]
STREAM = np.random.default_rng(0)
LOCK = threading.Lock()


class Difficulty:
    """An object of the program, whose attribute decides which batch comes."""

    def __init__(self) -> None:
        self.level = 1


LEVEL = Difficulty()


def over_data() -> Iterator[Any]:
    order = np.random.default_rng(1).permutation(4)
    for start in order:
        yield DATA[3 * start : 3 * start + 3]


def scaled() -> Iterator[Any]:
    for each in over_data():
        yield each * WEIGHTS["scale"]


def by_list() -> Iterator[Any]:
    for index in ORDER:
        yield DATA[index]


def drawn() -> Iterator[Any]:
    while True:
        yield STREAM.normal()


def by_difficulty() -> Iterator[Any]:
    while True:
        yield DATA[: LEVEL.level]


def by_local(noted: list[float]) -> Iterator[Any]:
    for _ in range(5):
        yield len(noted)


def guarded() -> Iterator[Any]:
    while True:
        with LOCK:
            yield DATA[:3]


def of_stdlib_stream() -> Iterator[Any]:
    own = random.Random(3)
    while True:
        yield own.random()


def double_data() -> None:
    DATA.__imul__(2.0)


class ByNumber:
    """A sequence of the program, which Python goes over by numbers."""

    def __getitem__(self, number: int) -> int:
        return [3, 1, 2][number]


@pytest.mark.parametrize(
    ("make", "is_plain"),
    [
        (lambda: iter(DATA.reshape(4, 3)), True),
        (lambda: enumerate(DATA.reshape(4, 3)), True),
        (lambda: iter(ByNumber()), False),
        (lambda: zip(DATA, ByNumber(), strict=False), False),
        (over_data, False),
    ],
)
def test_going_over_an_array_runs_no_code_of_the_program(make: Callable[[], Iterator[Any]], *, is_plain: bool) -> None:
    assert is_plain_iterator(begun(make())) is is_plain


def begun(iterator: Iterator[Any]) -> Iterator[Any]:
    """Return an iterator that has given its first item."""
    next(iterator)
    return iterator


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Put the module's objects back."""
    data, weights, order, level = DATA.copy(), dict(WEIGHTS), list(ORDER), LEVEL.level
    yield
    DATA[:], ORDER[:], LEVEL.level = data, order, level
    WEIGHTS.update(weights)


NOTED: list[float] = []


@pytest.mark.parametrize(
    ("make", "change"),
    [
        pytest.param(over_data, double_data, id="an array in place"),
        pytest.param(scaled, lambda: WEIGHTS.update(scale=2.0), id="a dict"),
        pytest.param(scaled, double_data, id="an array that an inner generator reads"),
        pytest.param(by_list, lambda: ORDER.append(0), id="a list that it goes over"),
        pytest.param(drawn, STREAM.normal, id="a random stream"),
        pytest.param(by_difficulty, lambda: setattr(LEVEL, "level", 2), id="an attribute"),
        pytest.param(lambda: by_local(NOTED), lambda: NOTED.append(1.0), id="a list among its locals"),
        pytest.param(lambda: enumerate(scaled()), double_data, id="below enumerate"),
        pytest.param(lambda: itertools.islice(scaled(), 9), double_data, id="below islice"),
        pytest.param(lambda: zip(over_data(), by_list(), strict=False), lambda: ORDER.append(0), id="below zip"),
    ],
)
def test_a_change_of_anything_that_a_generator_reads_is_seen(make: Callable[[], Iterator[Any]], change: Callable[[], Any]) -> None:
    iterator = begun(make())
    reads = Reads(iterator)
    same = reads.is_same(), reads.is_same()
    change()

    assert reads.is_known
    assert same == (True, True)
    assert not reads.is_same()


def test_a_name_that_is_bound_to_another_object_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(begun(scaled()))
    monkeypatch.setitem(globals(), "WEIGHTS", {"scale": 3.0})

    assert not reads.is_same()


@pytest.mark.parametrize("make", [over_data, scaled, by_list, lambda: enumerate(by_local([]))])
def test_the_end_of_a_generator_is_no_change(make: Callable[[], Iterator[Any]]) -> None:
    iterator = begun(make())
    reads = Reads(iterator)
    list(iterator)

    assert reads.is_same()


@pytest.mark.parametrize("make", [guarded, lambda: iter(map(str, by_list())), lambda: open(__file__)])  # noqa: SIM115
def test_what_cannot_be_looked_at_is_not_known(make: Callable[[], Iterator[Any]]) -> None:
    iterator = begun(make())

    assert not Reads(iterator).is_known
    assert not Reads(iterator).is_same()


class Curriculum(list[int]):
    """A list of the program with slots, objects that it chooses among, and a variable of the class."""

    __slots__ = ("level", "now", "stages", "transform")
    rate = 1.0

    def __init__(self) -> None:
        super().__init__([1, 2])
        self.level, self.stages, self.transform = 1, (Difficulty(), Difficulty()), double_data
        self.now = self.stages[0]
        self.stages[1].level = 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda stages: setattr(stages, "level", 2), id="a slot"),
        pytest.param(lambda stages: stages.append(3), id="an item"),
        pytest.param(lambda stages: setattr(stages, "now", stages.stages[1]), id="another object of those that it holds"),
        pytest.param(lambda stages: setattr(stages, "transform", begun), id="another function"),
        pytest.param(lambda stages: setattr(type(stages), "rate", 2.0), id="a variable of the class"),
    ],
)
@pytest.mark.parametrize("by_class", [False, True])
def test_changes_of_an_object_of_the_program_are_seen(
    change: Callable[[Curriculum], Any], monkeypatch: pytest.MonkeyPatch, *, by_class: bool
) -> None:
    monkeypatch.setattr(Curriculum, "rate", Curriculum.rate)
    stages = Curriculum()
    if by_class:
        monkeypatch.setattr(Curriculum, "current", stages, raising=False)

    def staged() -> Iterator[Any]:
        while True:
            yield (Curriculum if by_class else stages)

    reads = Reads(begun(staged()))
    assert reads.is_known
    assert reads.is_same()
    change(stages)
    assert not reads.is_same()


def test_changes_by_a_method_that_a_generator_has_bound_are_seen() -> None:
    taken = [1, 2, 3]

    def by_method(take: Callable[[int], int]) -> Iterator[int]:
        while True:
            yield take(0)

    reads = Reads(begun(by_method(taken.__getitem__)))

    assert reads.is_same()
    taken[0] = 5
    assert not reads.is_same()


@pytest.mark.parametrize("content", [np.ma.masked_array(np.ones(3)), np.ones(3).view(np.matrix)])
def test_arrays_of_other_classes_are_not_known(content: object) -> None:
    assert not Reads(begun(by_local(content))).is_known  # type: ignore[arg-type]


def test_a_stream_of_its_own_is_looked_at() -> None:
    iterator = begun(of_stdlib_stream())
    reads = Reads(iterator)

    assert reads.is_same()
    next(iterator)
    assert not reads.is_same()


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("change", [lambda weight: weight.detach().mul_(2.0), lambda weight: weight.data.mul_(2.0)])
def test_tensors_that_change_in_place_are_seen(change: Callable[[Any], Any], *, is_inference: bool) -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode(is_inference):
        weight = torch.ones(3)

    def weighed() -> Iterator[Any]:
        while True:
            yield weight.sum()

    reads = Reads(begun(weighed()), lambda value: np.asarray(value) if torch.is_tensor(value) else None)

    assert reads.is_same()
    change(weight)
    assert not reads.is_same()


def test_variables_of_tensorflow_are_not_known() -> None:
    tf = pytest.importorskip("tensorflow")
    weight = tf.Variable(1.0)

    def weighed() -> Iterator[Any]:
        while True:
            yield float(weight)

    assert not Reads(begun(weighed())).is_known


def test_arrays_of_jax_count_by_their_identity() -> None:
    jnp = pytest.importorskip("jax.numpy")
    held = {"a": jnp.ones(3)}

    def weighed() -> Iterator[Any]:
        while True:
            yield held["a"].sum()

    reads = Reads(begun(weighed()))

    assert reads.is_same()
    held["a"] = jnp.ones(3)
    assert not reads.is_same()
