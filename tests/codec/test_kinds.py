"""What every kind of objects is asked for, over the table of samples: a restored world is the one that was encoded, bit
for bit, in the objects that were there.
"""

from __future__ import annotations

import time

import pytest

from detrain.python.codec.graph_files import unpack
from detrain.python.codec.kind import KINDS
from detrain.python.codec.table import find_kind
from detrain.store import Meta, Snapshot
from detrain.verify.state_diff import compare
from tests.codec.sample import Sample, changed, hold, into, places, put_back
from tests.codec.samples import SAMPLES
from tests.runtime import state_values as kinds
from tests.runtime.state_compare import difference
from tests.runtime.state_values import World, baseline_of, encode, restore

META = Meta(
    phase=0, epoch=1, batch=0, cut="epoch", run=1, program="train", arguments=(), sources={}, environment={}, seed=0,
    batches_done=3, journal_bytes=0,
)  # fmt: skip
ELSEWHERE = {
    *("tensor", "variable", "held", "shared", "memory", "texts"),  # of frameworks: `tests/adapters`
    *("constant", "large", "absent", "made"),  # not in a file, or a framework's
    "npscalar",  # of an earlier format: `tests/runtime/test_earlier_formats.py`
    "restored",  # of extensions: `tests/runtime/test_reduced_objects.py`
    "reduced",  # of other packages: `tests/runtime/test_reducers.py`
    *("generator", "loader"),  # of loops: `tests/runtime/test_offered_positions.py`, `tests/e2e/test_generators.py`
    *("address", "library"),  # `test_graphs.py`, `test_libraries.py`
    *("sqlite3.Connection", "io.closed"),  # need files: `tests/runtime/test_databases.py`, `test_library_kinds.py`
}
"""Kinds of nodes that have their tests elsewhere."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset, time.struct_time, kinds.Point)
"""Classes of which nobody can tell two equal objects apart, but by `is`."""

every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
every_makeable = pytest.mark.parametrize(
    "sample",
    [each for each in SAMPLES.values() if each.is_makeable],
    ids=[name for name, each in SAMPLES.items() if each.is_makeable],
)


def counts(sample: Sample, first: World, later: World) -> set[str]:
    """Return the names whose objects the loop has kept, and of which it matters which ones they are."""
    return {name for name, value in first.items() if later[name] is value and type(value) not in PLAIN} - {*sample.remade}


@every_sample
def test_a_resumed_process_has_what_the_loop_left_in_the_objects_that_were_there(sample: Sample) -> None:
    wanted = sample.see(changed(sample)[0])
    after = sample.make()
    first, baseline = dict(after), baseline_of(after)
    sample.change(after)
    encoded = encode(after, baseline)
    before = sample.make()
    live = dict(before)

    assert places(encoded.not_captured) == list(sample.lost)
    into(encoded, before)

    assert all(before[name] is live[name] for name in counts(sample, first, after))
    del live
    assert sample.is_seen_only or difference(after, before) is None
    assert sample.see(before) == wanted


@every_sample
def test_what_the_loop_left_alone_stays_the_object_that_it_is(sample: Sample) -> None:
    after, before = sample.make(), sample.make()
    live, encoded = dict(before), encode(after, baseline_of(after))
    into(encoded, before)

    assert encoded.not_captured == []
    assert all(before[name] is value for name, value in live.items() if type(value) not in PLAIN)


@every_makeable
def test_what_has_been_done_to_objects_does_not_show_when_an_earlier_state_is_restored(sample: Sample) -> None:
    wanted, after, before = sample.see(sample.make()), sample.make(), sample.make()
    encoded, there = encode(after, baseline_of({} if sample.is_kept else after)), baseline_of(before)
    sample.change(before)

    assert encoded.not_captured == []
    assert restore(encoded, before, there) == []

    assert sample.is_seen_only or difference(after, before) is None
    assert sample.see(before) == wanted


@every_makeable
def test_a_process_that_has_nothing_of_it_makes_it(sample: Sample) -> None:
    wanted, after = sample.see(changed(sample)[0]), changed(sample)[0]
    before: World = dict.fromkeys(after)
    encoded = encode(after, baseline_of(before))

    assert places(encoded.not_captured) == list(sample.lost)
    into(encoded, before)

    assert sample.is_seen_only or difference(after, before) is None
    assert sample.see(before) == wanted


@every_makeable
def test_what_several_places_hold_is_one_object_afterwards_too(sample: Sample) -> None:
    after = changed(sample)[0]
    world: World = {"tuple": (after, {"again": [*after.values()]}), **after}
    there = into(encode(world, baseline_of({})), {"tuple": None, **sample.make()})

    inside, again = there["tuple"]
    assert sample.is_seen_only or difference(after, inside) is None
    for (name, value), other in zip(inside.items(), again["again"], strict=True):
        assert not counts(sample, {name: value}, {name: value}) or value is other is there[name]


@every_sample
def test_what_is_done_to_objects_is_undone_within_the_process(sample: Sample) -> None:
    wanted, world = sample.see(sample.make()), sample.make()
    live, baseline = dict(world), baseline_of(world)
    held = hold(world, baseline)
    assert places(held.lost) == []
    sample.change(world)
    back, missing = put_back(held, baseline)

    assert (missing == []) == sample.is_returned
    assert all(back[name] is value for name, value in live.items() if counts(sample, {name: value}, {name: value}))
    assert {id(value) for value, _path in held.opaque} >= {id(live[name]) for name in sample.left}
    assert sample.left or not sample.is_returned or sample.see({name: back[name] for name in live}) == wanted


@every_sample
def test_equal_states_have_equal_bytes_and_others_are_told_apart_by_where_they_differ(sample: Sample) -> None:
    def snapshot(world: World) -> Snapshot:
        encoded = encode(world, baseline_of(dict.fromkeys(world)))
        return Snapshot(META, {}, {}, encoded.graph, encoded.arrays)

    one, other = snapshot(sample.make()), snapshot(sample.make())
    assert one.python == other.python
    assert {name: array.tobytes() for name, array in one.arrays.items()} == {n: a.tobytes() for n, a in other.arrays.items()}
    assert compare(one, other) == []

    names = tuple(sample.make())
    found = [str(each.name) for each in compare(one, snapshot(changed(sample)[0]))]
    assert found or not sample.is_makeable
    assert all(name.startswith(names) or "." in name for name in found)


@every_sample
def test_encoding_changes_nothing(sample: Sample) -> None:
    wanted, world = sample.see(sample.make()), sample.make()
    baseline = baseline_of(world)
    graphs = [encode(world, baseline).graph for _ in range(2)]

    assert graphs[0] == graphs[1]
    assert sample.is_seen_only or difference(sample.make(), world) is None
    assert sample.see(world) == wanted


def test_every_kind_has_a_sample() -> None:
    worlds = [*map(changed, SAMPLES.values()), *((sample.make(), baseline_of({})) for sample in SAMPLES.values())]
    graphs = [unpack(encode(world, baseline).graph) for world, baseline in worlds]
    met = {node.kind for graph in graphs for node in graph.nodes}

    assert sorted(KINDS.keys() - met - ELSEWHERE) == []
    assert all(find_kind(name) for name in met)
    assert sorted(ELSEWHERE & met) == []
