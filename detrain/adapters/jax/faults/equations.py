"""The equations of a compiled function, also those inside of others: the path, the stage and the dependents of each.

An equation is addressed by the path of numbers that leads to it: `13.0` is equation 0 of the loop that is equation 13;
where an equation has several jaxprs (branches), one more number tells which.

Calls, loops and branches have jaxprs inside, through which values are handed. A step is one jaxpr: forward pass,
backward pass and update are all in it, and `vmap` and `grad` have been resolved. An equation of another kind with a
jaxpr inside (a Pallas kernel, a solver) counts as one without, seen from outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import jax
import msgspec
import xxhash
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import PartitionSpec

from detrain.adapters.jax import private_names
from detrain.adapters.jax.private_names import UNSPECIFIED
from detrain.faults.sites import Stage, Use

Path = tuple[int, ...]
MOVES: Final = frozenset(
    {
        *("transpose", "rev", "reshape", "convert_element_type", "broadcast_in_dim", "copy", "squeeze", "expand_dims"),
        *("name", "stop_gradient", "pvary", "sharding_constraint", "optimization_barrier"),
    }
)
"""Equations that hand their input on, in another order or form."""
_PRODUCTS: Final = frozenset({"mul", "integer_pow", "square"})
_HANDED_ON: Final = MOVES | {"neg"}
_SUMS: Final = frozenset({"add", "add_any", "sub", "reduce_sum", "cumsum", "reduce_window_sum"})
"""For products that are added up: the ops that give a product, those that may stand between, those that add."""
_STEPS_BACK: Final = 4
_MOST_REACHED: Final = 16
_BACKWARD: Final = "transpose("
_FORWARD: Final = "jvp("
_AGAIN: Final = "rematted_computation"
"""JAX's scope for forward ops that are computed again in the backward pass."""
_OF_CLASSES: Final = "eqx.nn."
"""The beginning of equinox's scopes that name the class of a layer."""
_OWN_SCOPES: Final = frozenset({_AGAIN, "checkpoint", "remat", "closed_call", "core_call"})

_CALLS: Final = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Equations that run one jaxpr once, with the parameter that holds it. They are not differentiated any more, so that a
custom rule for that may stay as it was."""
SHARDED: Final = "shard_map"
"""The equation that runs its jaxpr on each device."""
WHILE: Final = "while"
"""The equation that runs its second jaxpr, the body, as long as its first one, the condition, says so."""
OF_WHILE: Final = ("cond_jaxpr", "body_jaxpr")
"""The parameters that hold the two."""


def inner_jaxprs(equation: JaxprEqn) -> list[Jaxpr]:
    """Return the jaxprs of an equation that can have sites inside."""
    if any(hasattr(effect, "input") for effect in equation.effects):
        return []  # it changes references, which are known by their place among the inputs
    name, params = equation.primitive.name, equation.params
    if name in _CALLS and _CALLS[name] in params:
        return [_opened(params[_CALLS[name]])]
    if name == "scan":
        return [_opened(params["jaxpr"])]
    if name == WHILE:
        return [_opened(params[each]) for each in OF_WHILE]
    if name == SHARDED:
        return [params["jaxpr"]]
    return [_opened(each) for each in params["branches"]] if name == "cond" else []


def is_call(equation: JaxprEqn) -> bool:
    """Return whether an equation runs one jaxpr once, with its own inputs and outputs."""
    return equation.primitive.name in _CALLS or equation.primitive.name == SHARDED


def devices_of(equation: JaxprEqn) -> int:
    """Return on how many devices an equation runs its jaxpr, each on a part of its inputs."""
    if equation.primitive.name != SHARDED:
        return 1
    return prod(equation.params["mesh"].shape[axis] for axis in equation.params["newly_manual_axes"])


def _axes(equation: JaxprEqn) -> frozenset[str]:
    """Return the axes of a `shard_map`'s devices, if types tell over which of them a value varies; else none."""
    return equation.params["newly_manual_axes"] if equation.params["check_vma"] else frozenset()


def runs_of_scan(equation: JaxprEqn) -> int | None:
    """Return how often an equation runs its jaxpr; None where that is not known before it runs."""
    if equation.primitive.name == "scan":
        return int(equation.params["length"])
    return 1 if is_call(equation) else None


def handed_in(equation: JaxprEqn, place: int) -> Sequence[Any]:
    """Return the variables that an equation hands to the inputs of one of its jaxprs; None for a value that it carries
    from turn to turn.
    """
    name, params, invars = equation.primitive.name, equation.params, equation.invars
    if name == "scan":
        constants_of_scan, carry = private_names.parts_of_scan(params)
        return [*invars[:constants_of_scan], *[None] * carry, *invars[constants_of_scan + carry :]]
    if name == WHILE:
        first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        constants: Sequence[Any] = invars[first:last] if place else invars[:first]
        return [*constants, *[None] * (len(invars) - last)]
    given: Sequence[Any] = invars[1:] if name == "cond" else invars  # behind the index of the branch
    return given


def handed_out(equation: JaxprEqn, inner: Jaxpr) -> list[tuple[Any, Any]]:
    """Return an equation's outputs with the variables of a jaxpr inside that give them, without the carried values."""
    name = equation.primitive.name
    carried = private_names.parts_of_scan(equation.params)[1] if name == "scan" else len(equation.outvars) if name == WHILE else 0
    return list(zip(equation.outvars, inner.outvars, strict=False))[carried:]


def widened(equation: JaxprEqn, inner: Sequence[Jaxpr], given: Sequence[Any], made: Sequence[Any]) -> JaxprEqn:
    """Return an equation, other than a `while`, that hands on more values: it takes in the variables `given`, and gives
    the variables `made`. The `inner` jaxprs replace its own; in each, these values are the last inputs and the last
    outputs.
    """
    name, params, count = equation.primitive.name, dict(equation.params), len(given)
    invars, outvars = [*equation.invars], [*equation.outvars]
    if name in _CALLS:
        params[_CALLS[name]] = _like(params[_CALLS[name]], inner[0])
        params.update(wider_call(params, count) if name == "jit" else {})
    elif name == "scan":
        constants, carry = private_names.parts_of_scan(params)
        moved = _moved(inner[0], constants + carry, carry, count)
        params.update(jaxpr=_like(params["jaxpr"], moved), **private_names.wider_scan(params, count))
        invars[constants + carry : constants + carry], outvars[carry:carry] = given, made
        return equation.replace(invars=invars, outvars=outvars, params=params)
    elif name == SHARDED:
        axes = tuple(axis for axis in params["mesh"].axis_names if axis in params["newly_manual_axes"])
        specs = (PartitionSpec(axes),) * count
        params.update(jaxpr=inner[0], in_specs=(*params["in_specs"], *specs), out_specs=(*params["out_specs"], *specs))
    else:
        params["branches"] = tuple(map(_like, params["branches"], inner))
    return equation.replace(invars=[*invars, *given], outvars=[*outvars, *made], params=params)


def wider_call(params: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the parameters of a compiled call with an entry for each input or output, with `count` entries more."""
    return {
        "in_shardings": (*params["in_shardings"], *(UNSPECIFIED,) * count),
        "out_shardings": (*params["out_shardings"], *(UNSPECIFIED,) * count),
        "in_layouts": (*params["in_layouts"], *(None,) * count),
        "out_layouts": (*params["out_layouts"], *(None,) * count),
        "donated_invars": (*params["donated_invars"], *(False,) * count),
    }


def without_names(jaxpr: Jaxpr) -> Jaxpr:
    """Return a jaxpr without the names of its inputs and outputs: it was made with other ones."""
    return jaxpr.replace(debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None))


def _moved(jaxpr: Jaxpr, first: int, carried: int, count: int) -> Jaxpr:
    """Return a jaxpr with its last inputs and outputs moved behind those that it carries from turn to turn."""
    invars, outvars = jaxpr.invars, jaxpr.outvars
    return jaxpr.replace(
        invars=[*invars[:first], *invars[-count:], *invars[first:-count]],
        outvars=[*outvars[:carried], *outvars[-count:], *outvars[carried:-count]],
    )


def _opened(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _like(closed: Any, jaxpr: Jaxpr) -> Any:
    """Return a jaxpr with the constants of another one, if that is closed over some."""
    return ClosedJaxpr(jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else jaxpr


class Equation(msgspec.Struct, frozen=True, eq=False):
    """An equation without a jaxpr inside that has sites of its own."""

    path: Path
    value: JaxprEqn
    stage: Stage
    layer: str
    signature: str
    """Digest of the equations from which its inputs come, some steps back."""
    live: frozenset[int]
    """Those of its outputs on which a result or an effect of the function depends."""
    entry: Path | None
    """The path of the branch or loop body around it whose runs are not known beforehand; None: there is none."""
    runs: int
    """How often it runs when the function, or that branch or body, runs once."""
    uses: Mapping[int, Use]
    """The uses of its outputs, where they matter: one chooses a branch, or the function returns it."""
    devices: int
    """The number of devices on which it runs, each with values of its own."""
    axes: frozenset[str]
    """The axes of the innermost mesh of these devices, if types tell over which a value varies; else none."""
    is_contracted: bool
    """Whether it gives or hands on a product that is added to a value: a compiler may make one op of both."""
    factors: tuple[int, ...]
    """The identities of the values that its inputs are, or were moved from; equal numbers mean one value."""

    @property
    def address(self) -> str:
        """Its path as it stands in names of sites."""
        return ".".join(map(str, self.path))


def equations(function: Jaxpr, around: str = "") -> list[Equation]:
    """Return the equations of a function in order. `around`: the transformations that it is run under."""
    walk = _EquationWalk()
    walk.jaxpr(function, range(len(function.outvars)), _Around((), _Scope.of(around), None, 1, use="store"))
    return walk.found


def branches_of(function: Jaxpr) -> list[Path]:
    """Return the paths of the branches and bodies in a function whose runs are not known beforehand."""
    return list(_entries(function, ()))


def _entries(jaxpr: Jaxpr, path: Path) -> Iterator[Path]:
    for number, equation in enumerate(jaxpr.eqns):
        for each, inner in paths_inside(equation, (*path, number)):
            if runs_of_scan(equation) is None:
                yield each
            yield from _entries(inner, each)


def paths_inside(equation: JaxprEqn, path: Path) -> list[tuple[Path, Jaxpr]]:
    """Return the jaxprs of an equation, with the path of each."""
    inner = inner_jaxprs(equation)
    return [((*path, place) if len(inner) > 1 else path, each) for place, each in enumerate(inner)]


class _Scope(msgspec.Struct, frozen=True):
    """The scopes around an equation: names of layers, and whether they belong to the forward or the backward pass."""

    layers: tuple[str, ...] = ()
    is_forward: bool = False
    is_backward: bool = False

    @classmethod
    def of(cls, text: str) -> _Scope:
        return cls().inside(text)

    def inside(self, text: str) -> _Scope:
        """Return the scope with a name stack inside of it: `transpose(jvp(Net))/Dense_0`."""
        layers, is_forward, is_backward = self.layers, self.is_forward, self.is_backward
        for part in filter(None, text.split("/")):
            name = part.rpartition("(")[2].rstrip(")")
            if name == _AGAIN:
                is_forward, is_backward = True, False
            elif _BACKWARD in part:
                is_forward, is_backward = False, True
            elif _FORWARD in part:
                is_forward = not is_backward
            is_layer = name and name not in _OWN_SCOPES and not name.startswith(_OF_CLASSES) and name not in layers[-1:]
            layers = (*layers, name) if is_layer else layers
        return _Scope(layers, is_forward, is_backward)


class _Around(msgspec.Struct, frozen=True):
    """The path, the scopes, the numbers of runs and devices around a jaxpr, and the axes of the innermost mesh."""

    path: Path
    scope: _Scope
    entry: Path | None
    runs: int
    devices: int = 1
    axes: frozenset[str] = frozenset()
    use: Use = ""
    """The use of the jaxpr's outputs."""


class _EquationWalk(msgspec.Struct):
    found: list[Equation] = []
    origins: dict[int, int] = {}
    """By the identity of a variable that got its value by moves only: the identity of the variable that it came from. A
    jaxpr that several equations run has the origins of the last equation."""
    has_backward: bool = False
    """Whether an equation of the backward pass has been met: later equations outside of both passes are the update."""

    def jaxpr(self, jaxpr: Jaxpr, used: Sequence[int], around: _Around) -> None:
        makers = {id(variable): (equation, place) for equation in jaxpr.eqns for place, variable in enumerate(equation.outvars)}
        live, added = _live(jaxpr, used), _added(jaxpr)
        uses: dict[int, Use] = {id(each): around.use for each in jaxpr.outvars if around.use}
        uses |= {id(each.invars[0]): "predicate" for each in jaxpr.eqns if each.primitive.name == "cond"}
        for number, equation in enumerate(jaxpr.eqns):
            path, scope = (*around.path, number), around.scope.inside(str(equation.source_info.name_stack))
            devices = around.devices * devices_of(equation)
            axes = _axes(equation) if equation.primitive.name == SHARDED else around.axes
            inside = paths_inside(equation, path)
            alive = [place for place, variable in enumerate(equation.outvars) if id(variable) in live]
            for place, (each, inner) in enumerate(inside):
                self._hand_in(handed_in(equation, place), inner)
                runs = runs_of_scan(equation)
                beyond = (each, 1) if runs is None else (around.entry, around.runs * runs)
                is_mapped = is_call(equation) or equation.primitive.name == "cond"
                results = alive if is_mapped else range(len(inner.outvars)) if alive or equation.effects else []
                use: Use = "predicate" if equation.primitive.name == WHILE and not place else ""
                self.jaxpr(inner, results, _Around(each, scope, *beyond, devices, axes, use))
                self.origins |= {id(outer): self._origin(variable) for outer, variable in handed_out(equation, inner)}
            if inside:
                continue
            if equation.primitive.name in MOVES:
                self.origins[id(equation.outvars[0])] = self._origin(equation.invars[0])
            self.has_backward |= scope.is_backward
            self.found.append(
                Equation(
                    path,
                    equation,
                    self._stage(scope),
                    ".".join(scope.layers),
                    _signature(equation, makers),
                    frozenset(alive),
                    around.entry,
                    around.runs,
                    {place: uses[id(each)] for place, each in enumerate(equation.outvars) if id(each) in uses},
                    around.devices,
                    around.axes,
                    equation.primitive.name in _PRODUCTS | _HANDED_ON and id(equation.outvars[0]) in added,
                    tuple(map(self._origin, equation.invars)),
                )
            )

    def _origin(self, variable: Any) -> int:
        return self.origins.get(id(variable), id(variable))

    def _hand_in(self, given: Sequence[Any], inner: Jaxpr) -> None:
        """Note the origins of a jaxpr's inputs: a loop's slice has that of the whole array; carried values are new."""
        for outer, variable in zip(given, inner.invars, strict=False):
            if outer is not None:
                self.origins[id(variable)] = self._origin(outer)

    def _stage(self, scope: _Scope) -> Stage:
        if scope.is_backward or scope.is_forward:
            return "backward" if scope.is_backward else "forward"
        return "optimizer" if self.has_backward else "forward"


def _live(jaxpr: Jaxpr, used: Sequence[int]) -> set[int]:
    """Return the variables, by identity, on which the used outputs, or equations with effects, depend."""
    live = {id(jaxpr.outvars[place]) for place in used}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(variable) in live for variable in equation.outvars):
            live |= {id(variable) for variable in equation.invars if not isinstance(variable, Literal)}
    return live


def _added(jaxpr: Jaxpr) -> set[int]:
    """Return the variables, by identity, that are added to a value, directly or after they are handed on."""
    added = set[int]()
    for equation in reversed(jaxpr.eqns):
        name = equation.primitive.name
        if name in _SUMS or (name in _HANDED_ON and id(equation.outvars[0]) in added):
            added |= {id(variable) for variable in equation.invars}
    return added


def _signature(equation: JaxprEqn, makers: dict[int, tuple[JaxprEqn, int]]) -> str:
    state = xxhash.xxh3_64(equation.primitive.name.encode())
    reached: list[Any] = list(equation.invars)
    for _step in range(_STEPS_BACK):
        following: list[Any] = []
        for variable in reached:
            known = None if isinstance(variable, Literal) else makers.get(id(variable))
            state.update(f"{'' if known is None else known[0].primitive.name} {0 if known is None else known[1]}\n".encode())
            following += [] if known is None else known[0].invars
        reached = following[:_MOST_REACHED]
        state.update(b"\n")
    return state.hexdigest()


def dtype_named(variable: Any) -> str:
    """Return the name of a variable's dtype; empty for keys and tokens."""
    dtype = getattr(variable.aval, "dtype", None)
    return "" if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else str(dtype)
