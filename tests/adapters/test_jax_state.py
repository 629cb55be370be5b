"""JAX's state: a training that is resumed goes on as the one that was never cut, bit for bit; or the checkpoint names
what it does not hold. The oracle is the training that was not cut, as JAX itself tells it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

jax = pytest.importorskip("jax")

from detrain.adapters.jax.leaves import JaxRules  # noqa: E402
from detrain.python.inspect.object_graph import WITH_VARIABLES  # noqa: E402
from tests.adapters import jax_spread, jax_trainings, jax_values  # noqa: E402, F401
from tests.adapters.cut_world import assert_exact, packed  # noqa: E402
from tests.adapters.jax_resume import CASES, World, describe, jax_put_back  # noqa: E402

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
    *("arrays_by_every_kind_of_spec", "replicas_that_are_not_equal", "functions_over_all_devices"),
    *("arrays_that_are_donated_and_deleted", "large_arrays_that_stay_and_arrays_that_are_one"),
    *("memories_layouts_and_wide_numbers", "meshes_shardings_and_specs_as_values"),
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CASES])
def test_a_training_that_is_resumed_goes_on_as_the_whole_one(world: World, name: str) -> None:
    assert_exact(world.run(CASES[name]), CASES[name])


def test_an_object_with_arrays_that_no_checkpoint_holds_is_needed(world: World) -> None:
    names = {"state": None}
    baseline = world.baseline(names)
    names["state"] = jax_values.OfLibrary(jax.numpy.ones(3))

    assert [WITH_VARIABLES in loss for loss in world.encode(names, baseline).not_captured] == [True]


@pytest.mark.parametrize("library", [np, jax.numpy])
def test_containers_that_jax_does_not_take_do_not_hide_arrays(library: Any) -> None:
    """JAX sorts a dictionary's keys, and refuses those that have no order; and a list in itself."""
    held: list[Any] = [{int: 1, str: ({"a": 2, 3: [library.ones(2)]},)}]
    held.append(held)

    assert JaxRules().holds_variables(held) == (library is not np)


@st.composite
def spread_arrays(draw: st.DrawFn) -> Any:
    """An array over any mesh of some of eight devices in any order, by any spec, of any kind of memory and number."""
    sizes = draw(st.sampled_from([(8,), (4, 2), (2, 4), (2, 2, 2), (1, 8), (1,), (3,), (2, 3), (1, 1)]))
    devices = draw(st.permutations(jax.devices()))[: int(np.prod(sizes))]
    kinds = tuple(draw(st.sampled_from([jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])) for _ in sizes)
    mesh = jax.sharding.Mesh(np.array(devices, object).reshape(sizes), tuple("abc"[: len(sizes)]), axis_types=kinds)
    names = draw(st.permutations(mesh.axis_names))
    spec: list[Any] = []
    shape = []
    for _ in range(draw(st.integers(0, 3))):
        axes = tuple(names[: draw(st.integers(0, len(names)))])
        names = names[len(axes) :]
        spec.append(draw(st.sampled_from([axes, axes[0] if len(axes) == 1 else axes])) if axes else None)
        shape.append(draw(st.integers(0, 3)) * int(np.prod([mesh.shape[axis] for axis in axes])))
    spec = spec[: draw(st.integers(0, len(spec)))] if spec and spec[-1] is None else spec
    kind = draw(st.sampled_from(["float32", "bfloat16", "int8", "bool", "complex64", "int4", "key"]))
    sharding = jax.NamedSharding(mesh, jax.P(*spec), memory_kind=draw(st.sampled_from([None, "device", "pinned_host"])))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    if kind == "key":
        keys = jax.random.wrap_key_data(rng.integers(0, 1 << 32, (*shape, 2), np.uint32))
        return jax.device_put(keys, jax.NamedSharding(mesh, jax.P(*spec)))
    made = jax.device_put((rng.normal(size=shape) * 3).astype(jax.numpy.dtype(kind)), sharding)
    is_computed = mesh.size == 1 and made.sharding.memory_kind == "device"
    return jax.jit(jax.numpy.copy)(made) if is_computed else made  # what is computed there is its own shard


@given(arrays=st.lists(spread_arrays(), min_size=1, max_size=3))
def test_any_array_over_devices_comes_back_as_it_was(world: World, arrays: list[Any]) -> None:
    names = {"arrays": [*arrays, arrays[0]], "first": arrays[0]}
    encoded = world.encode(names, world.baseline({}))
    again: dict[str, Any] = {"arrays": [], "first": None}

    assert encoded.not_captured == []
    assert world.restore(packed(encoded), again, world.baseline({})) == []

    assert describe(again) == describe(names)
    assert world.restore(packed(world.encode(again, world.baseline({}))), again, world.baseline({})) == []


def test_an_array_that_is_as_it_was_stays_the_object_that_it_is(world: World) -> None:
    mesh = jax.make_mesh((8,), ("i",))
    names = {"one": jax.numpy.arange(8.0), "spread": jax.device_put(jax.numpy.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))}
    before, baseline = dict(names), world.baseline(names)

    assert world.restore(packed(world.encode(names, baseline)), names, baseline) == []

    assert [name for name in names if names[name] is not before[name]] == []
