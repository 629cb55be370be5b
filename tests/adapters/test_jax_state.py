"""JAX's state: a training that is resumed goes on as the one that was never cut, bit for bit; or the checkpoint names
what it does not hold. The oracle is the training that was not cut, as JAX itself tells it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

jax = pytest.importorskip("jax")

from detrain.python.inspect.object_graph import WITH_VARIABLES  # noqa: E402
from tests.adapters import jax_spread, jax_trainings, jax_values  # noqa: E402, F401
from tests.adapters.cut_world import packed  # noqa: E402
from tests.adapters.jax_resume import CASES, World, jax_put_back, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with jax_put_back():
        yield World()


FAST = (
    *("dtypes_and_what_computations_go_by", "keys_of_all_kinds", "a_step_that_takes_the_memory_of_its_arguments"),
    *("arrays_that_are_equal_and_arrays_that_are_one", "weak_types_of_large_arrays", "functions_compiled_in_the_loop"),
    *("forms_of_trees_devices_and_shapes", "optax adam", "linen_with_a_train_state", "nnx_split_and_merged"),
    *("equinox_with_filters", "a_state_of_example_libraries"),
    *("arrays_by_every_kind_of_spec", "replicas_that_are_not_equal", "keys_that_are_spread", "functions_over_all_devices"),
    *("arrays_that_are_donated_and_deleted", "large_arrays_that_stay_and_arrays_that_are_one"),
    *("memories_layouts_and_wide_numbers", "meshes_shardings_and_specs_as_values"),
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CASES])
def test_a_training_that_is_resumed_goes_on_as_the_whole_one(world: World, name: str) -> None:
    tried = CASES[name]

    outcome = run(world, tried)

    assert outcome.is_held, "what is held has changed"
    assert [each for each in outcome.lost if not tried.lost or not each.startswith(tried.lost)] == []
    assert [each for each in tried.lost if not any(loss.startswith(each) for loss in outcome.lost)] == []
    assert first_difference(outcome.at_end[1], outcome.unread) is None, "reading has changed the training"
    assert outcome.missing == []
    assert first_difference(*outcome.at_cut) is None
    assert first_difference(*outcome.at_end) is None


def test_an_object_with_arrays_that_no_checkpoint_holds_is_needed(world: World) -> None:
    names = {"state": None}
    baseline = world.baseline(names)
    names["state"] = jax_values.OfLibrary(jax.numpy.ones(3))

    assert [WITH_VARIABLES in loss for loss in world.encode(names, baseline).not_captured] == [True]


def test_an_array_that_is_as_it_was_stays_the_object_that_it_is(world: World) -> None:
    mesh = jax.make_mesh((8,), ("i",))
    names = {"one": jax.numpy.arange(8.0), "spread": jax.device_put(jax.numpy.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))}
    before, baseline = dict(names), world.baseline(names)

    assert world.restore(packed(world.encode(names, baseline)), names, baseline) == []

    assert [name for name in names if names[name] is not before[name]] == []


def first_difference(one: list[str], other: list[str]) -> str | None:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return f"{mine[:300]} | not | {theirs[:300]}"
    return None if len(one) == len(other) else f"{len(one)} lines, not {len(other)}"
