"""Two states are equal for `compare` just when what they hold is, whatever the numbers of their nodes."""

from __future__ import annotations

import io

import msgspec
import numpy as np
from hypothesis import given, settings
from tqdm import tqdm

from detrain.python.inspect.object_graph import FORMAT, SPENT_NAMES
from detrain.store import Meta, Snapshot
from detrain.verify.state_diff import compare
from tests.runtime.state_values import Recipe, World, baseline_of, encode, recipes

META = Meta(
    phase=0, epoch=1, batch=0, cut="epoch", run=1, program="train", arguments=(), sources={}, environment={}, seed=0,
    batches_done=3, journal_bytes=0,
)  # fmt: skip


def snapshot(world: World) -> Snapshot:
    encoded = encode(world, baseline_of({}))
    return Snapshot(META, {}, {}, encoded.graph, encoded.arrays)


def state_of(nodes: list[object], roots: dict[str, object]) -> Snapshot:
    return Snapshot(META, {}, {}, msgspec.msgpack.encode({"format": FORMAT, "nodes": nodes, "roots": roots}), {})


def test_a_name_that_is_read_no_more_may_be_bound_in_one_state_only() -> None:
    """What a phase before has bound: a resumed run does not enter its body."""
    nodes: list[object] = [["list", None, [1]], ["list", None, [2]], ["list", None, ["m|net"]], ["list", None, ["m|net", "m|opt"]]]
    without = state_of(nodes, {"m|x": [0]})
    spent = state_of(nodes, {"m|x": [0], "m|net": [1], SPENT_NAMES: [2]})
    read = state_of(nodes, {"m|x": [0], "m|net": [1]})
    other = state_of(nodes, {"m|x": [0], "m|net": [0], SPENT_NAMES: [2]})

    assert compare(without, spent) == compare(spent, without) == []
    assert [str(each) for each in compare(without, read)] == ["net: only in the second"]
    assert [str(each) for each in compare(read, spent)] == ["whether net is read: differs"]
    assert compare(other, spent) != []


@given(recipes)
@settings(max_examples=150)
def test_equal_states_have_no_difference(recipe: Recipe) -> None:
    assert compare(snapshot({"pool": recipe.build()}), snapshot({"pool": recipe.build()})) == []


def test_a_number_alone_in_a_list_is_no_reference() -> None:
    worlds: list[World] = [{"a": [n], "b": (n,), "c": {n}, "d": [[1], [n]], "e": np.array([n, None], object)} for n in (1, 2)]

    assert compare(snapshot(worlds[0]), snapshot(worlds[0])) == []
    assert {each.name for each in compare(snapshot(worlds[0]), snapshot(worlds[1]))} == {"a[0]", "b[0]", "c[0]", "d[1][0]", "e[0]"}


def test_whether_two_places_share_an_object_counts() -> None:
    one: list[int] = [1]
    shared: World = {"a": one, "b": one}
    apart: World = {"a": [1], "b": [1]}

    assert compare(snapshot(shared), snapshot(shared)) == []
    assert compare(snapshot(shared), snapshot(apart)) != []


def test_whether_two_places_share_a_device_does_not_count() -> None:
    def snapshot_of(nodes: list[object], places: list[int]) -> Snapshot:
        graph = {"format": FORMAT, "nodes": nodes, "roots": {f"{number}|name": [place] for number, place in enumerate(places)}}
        return Snapshot(META, {}, {}, msgspec.msgpack.encode(graph), {})

    cpu, cuda = (["torch.device", None, [name]] for name in ("cpu", "cuda"))
    shared = snapshot_of([cpu], [0, 0])
    assert compare(shared, snapshot_of([cpu, cpu], [0, 1])) == []
    assert compare(snapshot_of([cpu, cpu], [0, 1]), shared) == []
    assert compare(shared, snapshot_of([cpu, cuda], [0, 1])) != []


class Trainer:
    def __init__(self, loss: float) -> None:
        self.log = {"loss": [0.5, loss], "epoch": 1}
        self.best = loss


def test_a_value_that_differs_is_named_by_its_path() -> None:
    def step(loss: float) -> World:
        def run() -> float:
            return loss

        run.calls = int(loss)  # type: ignore[attr-defined]
        return {"trainer": Trainer(loss), "run": run, "same": [1, 2]}

    found = [each.name for each in compare(snapshot(step(1.0)), snapshot(step(2.0)))]

    assert {name for name in found if name.startswith("trainer")} == {"trainer.log['loss'][1]", "trainer.best"}
    assert all(not name.startswith("same") for name in found)


def test_when_a_progress_bar_was_drawn_last_is_no_difference_and_how_far_it_is_is_one() -> None:
    def bar(n: int, **times: float) -> Snapshot:
        world: World = {"bar": tqdm(total=9, file=io.StringIO()), "kept": times}
        baseline = baseline_of(world)
        vars(world["bar"]).update(n=n, **times)
        encoded = encode(world, baseline)
        return Snapshot(META, {}, {}, encoded.graph, encoded.arrays)

    names = [each.name for each in compare(bar(3, last_print_t=1.0), bar(4, last_print_t=2.0))]

    assert set(names) == {"bar.n", "kept['last_print_t']"}
