"""A graph that stays in its process: whatever has been done to its objects since, they hold again what they held."""

from __future__ import annotations

import collections
import enum
import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from detrain.python.codec.api import ABSENT, Baseline
from detrain.python.codec.in_process import Live, LiveDecoder, LiveEncoder, encode_value, restore_value
from tests.runtime.state_compare import difference
from tests.runtime.state_values import NO_FRAMEWORK, Recipe, World, baseline_of, make_functions, recipes


def hold(world: World, baseline: Baseline | None = None) -> Live:
    """Return the state of a world."""
    encoder = LiveEncoder(NO_FRAMEWORK, baseline or Baseline())
    return encoder.finish_live({name: encoder.encode(value, name) for name, value in world.items()})


def put_back(live: Live, baseline: Baseline | None = None) -> tuple[World, list[str]]:
    """Put a state back; return what the names are bound to then, and what could not be put back."""
    decoder = LiveDecoder(live, NO_FRAMEWORK, baseline or Baseline())
    return {name: decoder.decode(item, ABSENT, name) for name, item in decoder.roots.items()}, decoder.missing


def spoil(value: Any) -> None:
    """Change an object in place, if it can be."""
    match value:
        case list():
            list.insert(value, 0, "spoilt")
        case collections.deque():
            collections.deque.appendleft(value, "spoilt")
        case collections.Counter() | dict():
            for key in list(dict.keys(value))[:1]:
                dict.__delitem__(value, key)
            dict.__setitem__(value, "spoilt", 1)
        case bytearray():
            value += b"spoilt"
        case np.ndarray() if value.flags.writeable and value.dtype != object and value.size and value.ndim:
            if value.flags.c_contiguous:
                value.view(np.uint8).reshape(-1)[:1] ^= 0xFF
        case random.Random() | np.random.RandomState() | np.random.Generator():
            value.random()
    if type(value).__module__.startswith("tests.") and isinstance(getattr(value, "__dict__", None), dict):
        vars(value)["spoilt"] = 1


def has_identity(value: object) -> bool:
    """Return whether it matters which of several equal objects a value is."""
    return not isinstance(value, bool | int | float | complex | str | bytes | np.generic | None)


@given(recipes)
@settings(max_examples=200, deadline=None)
def test_what_is_done_to_a_graph_is_undone_in_the_very_objects(recipe: Recipe) -> None:
    pool = recipe.build()
    held = hold({"pool": pool})
    objects = list(pool)

    for value in objects:
        spoil(value)
    pool.clear()
    world, missing = put_back(held)

    assert missing == []
    assert world["pool"] is pool
    assert all(one is other or not has_identity(one) for one, other in zip(pool, objects, strict=True))
    assert difference(pool, recipe.build()) is None


class Model:
    """An object of the program."""

    def __init__(self) -> None:
        self.losses, self.best, self.stream = [1.0], None, np.random.default_rng(0)


def test_names_and_attributes_that_came_later_are_gone_and_those_that_went_are_back() -> None:
    model = Model()
    held, before = hold({"model": model}), model.losses
    model.losses, model.new = [2.0], 1  # type: ignore[attr-defined]
    before.append(3.0)
    del model.best
    drawn = model.stream.random()

    world, missing = put_back(held)

    assert (missing, world["model"]) == ([], model)
    assert model.losses is before
    assert before == [1.0]
    assert sorted(vars(model)) == ["best", "losses", "stream"]
    assert model.stream.random() == drawn


class Counted(random.Random):
    """A generator of the program's own class."""

    draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()


def test_a_generator_of_a_class_of_the_program_goes_back_to_its_place() -> None:
    source = Counted(1)
    held = hold({"source": source})
    drawn = [source.random() for _ in range(3)]

    world, missing = put_back(held)

    assert (missing, world["source"], source.draws) == ([], source, 0)
    assert [source.random() for _ in range(3)] == drawn


def test_a_view_and_its_owner_stay_one_memory() -> None:
    owner = np.arange(10.0)
    view = owner[2:5]
    held = hold({"owner": owner, "view": view})
    view[:] = -1

    world, missing = put_back(held)

    assert missing == []
    assert world["view"] is view
    assert view.base is owner
    assert owner.tolist() == list(range(10))


def test_a_large_array_of_before_the_loop_is_not_copied_and_a_change_in_it_is_named() -> None:
    world = {"data": np.zeros(300_000)}
    baseline = baseline_of(world)
    held = hold(world, baseline)
    assert sum(array.nbytes for array in held.arrays.values()) == 0
    assert put_back(held, baseline)[1] == []

    world["data"][7] = 1

    assert put_back(held, baseline)[1] == ["data: the large array has been changed in the loop"]


def test_a_large_array_of_the_loop_is_copied() -> None:
    data = np.zeros(300_000)
    held = hold({"data": data})
    data[7] = 1

    assert put_back(held)[1] == []
    assert data[7] == 0


def test_a_file_that_nobody_follows_is_named(tmp_path: Any) -> None:
    with io.open_code(__file__) as read, open(tmp_path / "log", "a") as written:
        assert hold({"read": read, "written": written}).lost == ["written (_io.TextIOWrapper: open for writing)"]


def test_iterators_are_left_to_whoever_goes_back() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    generator, iterator = numbers(), iter([1, 2, 3])
    held = hold({"generator": generator, "iterator": iterator})

    assert [value for value, _path in held.opaque] == [generator, iterator]


def test_a_set_whose_order_cannot_be_made_again_is_named_only_if_it_has_changed() -> None:
    one, other = Model(), Model()
    objects = {one, other}
    held = hold({"objects": objects})
    assert put_back(held)[1] == []

    objects.remove(one)

    assert put_back(held)[1] != []


@pytest.mark.parametrize("batch", [np.arange(6.0), {"x": [np.arange(3), "a"]}, (np.arange(2), {"n": np.zeros((2, 2))})])
def test_a_batch_that_a_body_changes_is_handed_out_as_it_was(batch: Any) -> None:
    import copy

    wanted, held = copy.deepcopy(batch), encode_value(batch, NO_FRAMEWORK)
    arrays = [batch] if isinstance(batch, np.ndarray) else [batch["x"][0]] if isinstance(batch, dict) else [batch[0], batch[1]["n"]]
    for array in arrays:
        array[...] = 9
    if isinstance(batch, dict):
        batch["x"].append(2)

    assert restore_value(held, NO_FRAMEWORK) == []
    assert difference(batch, wanted) is None


class Mode(enum.Enum):
    FAST = 1

    def __init__(self, _number: int) -> None:
        self.hits: list[int] = []


def test_methods_and_members_are_what_they_were() -> None:
    """Also one that the loop had deleted, and one that it has put there since."""

    class Agent:
        def act(self, memory: list[int] = []) -> int:  # noqa: B006
            memory.append(1)
            return len(memory)

        def still(self) -> int:
            return 1

        def gone(self) -> int:
            return 1

        left = gone

        @staticmethod
        def free(memory: list[int] = []) -> int:  # noqa: B006
            memory.append(1)
            return len(memory)

    kind: Any = Agent
    world: World = {"agent": Agent(), "kind": Agent, "mode": Mode}
    baseline = baseline_of(world)
    methods = dict(vars(Agent))
    del kind.gone, kind.left
    kind().act()
    kind.free()
    Mode.FAST.hits.append(1)
    live = hold(world, baseline)
    kind.still, kind.more, kind.gone, kind.free = methods["act"], methods["act"], methods["gone"], methods["act"]
    kind().act()
    methods["free"].__func__()
    Mode.FAST.hits.append(2)
    _, missing = put_back(live, baseline)

    assert not missing
    assert {"gone", "left", "more"}.isdisjoint(vars(Agent))
    assert {name: vars(Agent)[name] for name in ("act", "still", "free")} == {n: methods[n] for n in ("act", "still", "free")}
    assert (kind().act(), kind.free(), Mode.FAST.hits) == (2, 2, [1])


def test_functions_of_the_loop_stay_the_very_functions() -> None:
    made = make_functions(2)
    live = hold({"made": made}, Baseline())
    made["add"](3)
    world, missing = put_back(live, Baseline())

    assert not missing
    assert world["made"] is made
    assert (made["read"](), made["log"]) == (2, [])


def test_what_a_slice_leads_to_goes_back() -> None:
    inside = [1]
    held = hold({"slice": slice(inside, None)})
    inside.append(2)

    world, missing = put_back(held)

    assert (missing, world["slice"].start, inside) == ([], [1], [1])
    assert world["slice"].start is inside
