"""Arrays over several devices that a JAX program may have under its names at a cut."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.sharding_impls import GSPMDSharding
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tests.adapters.cut_world import Training
from tests.adapters.jax_resume import case

P = PartitionSpec
_HAS_KINDS = hasattr(jax.sharding, "UnreducedKind")
LARGE = 40_000


def mesh_of(*sizes: int, kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh(sizes, tuple("abc"[: len(sizes)]), axis_types=(kind,) * len(sizes))


def put(value: Any, mesh: Mesh, *spec: Any, **options: Any) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec), **options))


@case()
def arrays_by_every_kind_of_spec(names: Any) -> Training:
    mesh, line = mesh_of(4, 2), mesh_of(8)
    names.mesh, names.placed = mesh, []
    while True:
        turn = yield
        rows = np.arange(64.0, dtype=np.float32).reshape(16, 4) + turn
        names.placed = [put(rows, mesh, *spec) for spec in ((), ("a",), ("a", "b"), (("a", "b"),), (None, "b"), ("b", "a"))]
        names.placed += [put(rows.astype(kind), line, "a") for kind in ("bfloat16", "int4", "bool", "complex64", "float8_e4m3fn")]
        names.placed += [put(np.float32(turn), line), put(np.zeros((0, 3)), line), put(rows, Mesh([jax.devices()[3]], ("one",)))]
        names.placed += [put(rows, Mesh(jax.devices()[:4:-1], ("back",)), None)]
        names.placed += [jax.device_put(rows, jax.devices()[5]), jnp.ones(3) * turn]
        names.placed += [jax.device_put(rows, GSPMDSharding.get_replicated(tuple(jax.devices())))]
        names.alias = [names.placed[1], names.placed[0]]


@case()
def arrays_by_explicit_axes_and_a_mesh_that_is_set(names: Any) -> Training:
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    names.params = put(np.arange(32.0, dtype=np.float32).reshape(8, 4), mesh, "a", "b")
    names.scale = None

    @jax.jit
    def train(params: Any, scale: Any) -> Any:
        return params * 1.5 + scale

    while True:
        turn = yield
        names.scale = jnp.full((), 2.0 + turn)
        names.params = train(names.params, names.scale)


@case()
def replicas_that_are_not_equal(names: Any) -> Training:
    mesh = mesh_of(4, 2)
    names.local, names.seen = put(np.zeros(3, np.float32), mesh), []

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    def train(local: Any) -> Any:
        return local * 2 + jax.lax.axis_index("a")

    while True:
        yield
        names.local = train(names.local)
        names.seen.append([np.asarray(each.data).tolist() for each in names.local.addressable_shards])


@case()
def sums_that_are_still_to_be_made(names: Any) -> Training:
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    names.rows, names.sums = put(np.arange(32.0, dtype=np.float32).reshape(4, 8), mesh, None, "a"), None

    @jax.jit
    def train(rows: Any) -> Any:
        return jnp.einsum("ij,kj->ik", rows, rows, out_sharding=NamedSharding(mesh, P(None, None, unreduced={"a"})))

    while True:
        turn = yield
        names.rows = names.rows + turn
        names.sums = train(names.rows)


@case()
def keys_that_are_spread(names: Any) -> Training:
    mesh = mesh_of(8)
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    names.keys = [put(jax.random.split(jax.random.key(number, impl=kind), 8), mesh, "a") for number, kind in enumerate(kinds)]
    names.one, names.raw = put(jax.random.key(7), mesh), put(jax.random.PRNGKey(8), mesh)
    names.drawn = []
    while True:
        turn = yield
        for number, keys in enumerate(names.keys):
            names.keys[number] = jax.vmap(lambda key: jax.random.split(key, 1)[0])(keys)
            names.drawn.append(jax.vmap(lambda key: jax.random.normal(key, (2,)))(names.keys[number]))
        names.one, sub = jax.random.split(names.one)
        names.raw = jax.random.fold_in(names.raw, turn)
        names.drawn += [jax.random.uniform(sub, (8, 2)), jax.random.bits(names.raw)]


@case()
def arrays_that_are_donated_and_deleted(names: Any) -> Training:
    mesh = mesh_of(4, 2)
    names.params = {"w": put(np.arange(8.0, dtype=np.float32), mesh, "a"), "large": put(np.zeros(LARGE, np.float32), mesh, "a")}
    names.before = names.gone = None
    names.keys, names.used = [put(jax.random.split(jax.random.key(0), 8), mesh, "a"), jax.random.key(1)], []

    @functools.partial(jax.jit, donate_argnums=0)
    def train(params: Any) -> Any:
        return jax.tree.map(lambda each: each * 1.5 + 1, params)

    @functools.partial(jax.jit, donate_argnums=0)
    def drawn(key: Any) -> Any:
        return jax.random.clone(key)

    while True:
        turn = yield
        names.before = None if turn == 1 else names.params  # at the cut, and behind it, deleted
        names.params = train(names.params)
        if turn == 2:
            names.used = names.keys
            names.keys = [drawn(key) for key in names.keys]
            names.gone = put(np.ones((8, 2)), mesh, "a")
            names.gone.delete()


@case()
def large_arrays_that_stay_and_arrays_that_are_one(names: Any) -> Training:
    mesh = mesh_of(2, 4)
    names.mean, names.square = (put(np.zeros(LARGE, np.float32), mesh, "a") for _ in range(2))
    names.params, names.whole = put(np.ones(LARGE, np.float32), mesh, ("a", "b")), put(np.ones(LARGE, np.float32), mesh)
    names.target = names.params
    while True:
        turn = yield
        names.params = names.params + 1
        if turn == 1:
            names.target = names.params
        if turn == 2:
            names.mean, names.square = names.square, put(np.zeros(LARGE, np.float32), mesh, "a")


@case()
def large_keys_and_large_arrays_over_one_device_that_stay(names: Any) -> Training:
    mesh, one = mesh_of(8), Mesh(jax.devices()[2:3], ("one",))
    names.keys = put(jax.random.split(jax.random.key(0), 8 * LARGE), mesh, "a")
    names.one = jax.jit(lambda value: value + 1)(put(np.ones(LARGE, np.float32), one))
    names.out = None
    while True:
        turn = yield
        names.out = names.one * turn, jax.vmap(jax.random.bits)(names.keys[:8])


@case()
def memories_layouts_and_wide_numbers(names: Any) -> Training:
    mesh, first = mesh_of(4, 2), SingleDeviceSharding(jax.devices()[1])
    names.held = []
    while True:
        turn = yield
        rows = np.arange(32.0, dtype=np.float32).reshape(8, 4) + turn
        turned = [jax.device_put(rows, Format(Layout((1, 0)), place)) for place in (first, NamedSharding(mesh, P("a")))]
        with jax.enable_x64(True):
            wide = [jnp.arange(3.0) + turn, put(np.arange(8) + turn, mesh, "a"), jax.random.key(1)]
        hosts = [put(rows, mesh, "a", memory_kind="pinned_host")]
        hosts += [jax.device_put(rows, SingleDeviceSharding(jax.devices()[2], memory_kind="pinned_host"))]
        names.held = [*turned, *wide, *hosts]


@case()
def weak_types_and_arrays_that_are_not_committed(names: Any) -> Training:
    mesh = mesh_of(8)
    names.out = None
    while True:
        turn = yield
        weak = jax.jit(lambda value: value * 2)(put(jnp.full((8,), 1.0), mesh, "a"))
        names.weak, names.strong = weak, put(jnp.ones(8, jnp.float32), mesh, "a")
        names.free = jax.jit(lambda turn=turn: jnp.ones(3) * turn)()
        names.loose = ArrayImpl(weak.aval, weak.sharding, weak._arrays, committed=False, _skip_checks=True)
        names.out = (names.weak * jnp.bfloat16(1), names.strong * jnp.bfloat16(1), names.free + 1)


@case()
def meshes_shardings_and_specs_as_values(names: Any) -> Training:
    mesh = mesh_of(4, 2)
    names.found = {}
    while True:
        turn = yield
        spec = P("a", None) if turn % 2 else P(("a", "b"))
        named = NamedSharding(mesh, spec)
        names.found = {
            "mesh": mesh_of(2, 2, 2),
            "abstract": mesh.abstract_mesh,
            "spec": spec,
            "open": P(P.UNCONSTRAINED),
            "unreduced": P("a", unreduced={"b"}),
            **({"largest": P("a", unreduced={"b"}, unreduced_kind=jax.sharding.UnreducedKind.max)} if _HAS_KINDS else {}),
            "named": {"w": named},
            "gspmd": GSPMDSharding.get_replicated(tuple(jax.devices())),
            "formats": [Layout((1, 0)), Format(Layout((1, 0)), named), Format(Layout.AUTO, named)],
            "shape": jax.ShapeDtypeStruct((8, turn), jnp.float32, sharding=named),
            "placed": jax.device_put(np.ones((8, 2)), named),
        }


@case()
def functions_over_all_devices(names: Any) -> Training:
    names.value, names.scale = jnp.arange(8.0), None
    while True:
        turn = yield
        if turn == 1:
            names.scale = jax.pmap(scaled, axis_name="i", in_axes=(None, 0), static_broadcasted_argnums=())
        if names.scale is not None:
            names.value = names.scale(2.0, names.value)


@case()
def functions_mapped_over_shards_in_the_loop(names: Any) -> Training:
    names.mesh, names.value, names.plain, names.compiled = mesh_of(8), jnp.arange(8.0), None, None
    while True:
        turn = yield
        if turn == 1:
            names.plain = jax.shard_map(halved, mesh=names.mesh, in_specs=P("a"), out_specs=P("a"))
            names.compiled = jax.jit(jax.shard_map(mesh=names.mesh, in_specs=(P("a"),), out_specs=P("a"))(halved))
        if names.plain is not None:
            names.value = names.compiled(names.plain(names.value)) + 1


def halved(value: Any) -> Any:
    return value / 2


def scaled(rate: float, value: Any) -> Any:
    return value * rate + jax.lax.psum(value, "i")


@case()
def an_array_that_an_object_of_a_library_holds(names: Any) -> Training:
    mesh = mesh_of(8)
    names.held = eqx.filter_jit(functools.partial(jnp.multiply, put(np.arange(8.0, dtype=np.float32), mesh, "a")))
    weights = put(np.arange(8.0, dtype=np.float32), mesh, "a")
    names.ahead = jax.jit(lambda rows: rows * weights).lower(jnp.ones(8)).compile()
    names.value = None
    while True:
        turn = yield
        names.value = names.held(turn), names.ahead(jnp.ones(8) * turn)


@case()
def an_array_with_attributes_of_the_program(names: Any) -> Training:
    mesh = mesh_of(8)
    while True:
        turn = yield
        names.value = put(np.arange(8.0), mesh, "a")
        names.value.turn = turn
