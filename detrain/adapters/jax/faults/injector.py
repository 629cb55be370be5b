"""Puts faults into a compiled function, as equations behind or before those of sites. They read the plan from the
cells, so that arming, or another plan, compiles nothing; nor does another site of those that are put in together.

At a site stands a `cond`: unless the fault is due now, the value is handed on as it is. Faults act on bit patterns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from detrain.adapters.jax.faults.equations import Equation, Path, dtype_named
from detrain.adapters.jax.faults.rewriting import Edit, Rewriting, call_of
from detrain.adapters.jax.private_names import Var
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named as bits_of
from detrain.faults.experiment import Firing, Injection
from detrain.faults.sites import op_and_output

_POSITIONS: Final = ("positions", "sources", "limited")
_VALUES: Final = ("golden", "injected")
CELLS: Final = ("counts", *_POSITIONS, "keep", "flip", *_VALUES)
"""The cells in their order: the counts; the injection's arrays; the bit patterns before and after the fault."""
_FIRED, _WORKER = -2, -1
"""The places of the last two counts: how often the fault was put in, and the device that it hits. Before them stands
the countdown of each spot; one that begins at zero goes below zero, and its spot is never hit."""


class Spot(msgspec.Struct, frozen=True):
    """A place for a fault: an output or an input of an equation."""

    path: Path
    output: int
    operand: int | None = None
    """The place of the input that is hit; None: the output itself is hit."""
    is_limited: bool = False
    """Whether only some elements of the output see a fault of an input."""


class InjectionPoint:
    """A point for injections into values whose elements have one width; it puts in one injection at a time."""

    def __init__(self, injections: Sequence[Injection]) -> None:
        first = injections[0]
        self.width: Final = bits_of(first.dtype).unsigned
        if self.width.itemsize == 8 and not jax.config.jax_enable_x64:
            raise FaultInvalid(
                f"{first.site!r} has values of 64 bits, and jax_enable_x64 is off", "the fault is of another program"
            )
        self._sizes: Final = {name: max(each.array(name).size for each in injections) for name in (*_POSITIONS, "keep")}
        self.select(first)

    def takes(self, injection: Injection) -> bool:
        """Return whether an injection fits into this point's cells."""
        sizes = {name: injection.array(name).size for name in self._sizes}
        return bits_of(injection.dtype).unsigned == self.width and all(sizes[name] <= most for name, most in self._sizes.items())

    def select(self, injection: Injection) -> None:
        """Put this injection in from now on; it has not fired yet."""
        self._injection = injection
        self.op, self._output = op_and_output(injection.site)
        self._countdown = self._fired = self._misfits = 0
        self.is_placed = False
        self.other: Equation | None = None
        """An equation that has the site's name, but another signature."""
        values = np.zeros(self._sizes["keep"], self.width)
        arrays = {name: self._filled(injection.array(name), self._sizes[name]).astype(np.int32) for name in _POSITIONS}
        patterns = {name: self._filled(injection.array(name), self._sizes["keep"]).view(self.width) for name in ("keep", "flip")}
        found = {**arrays, **patterns, **dict.fromkeys(_VALUES, values)}
        self._arrays = [found[name] for name in CELLS[1:]]

    @staticmethod
    def _filled(array: Any, size: int) -> Any:
        """Return an array lengthened so that all injections fit; the first element is repeated."""
        return np.concatenate([array, np.repeat(array[:1], size - array.size)])

    def spot(self, equation: Equation) -> Spot | None:
        """Return the site's spot in an equation of its name; None if that is another equation, or has other shapes."""
        injection = self._injection
        if injection.signature not in ("", equation.signature):
            self.other = equation
            return None
        self.is_placed = True
        if not self._has_shapes(equation.value):
            self._misfits += 1
            return None
        operand = None if injection.operand == "output" else injection.index or 0
        return Spot(equation.path, self._output, operand, bool(injection.limited))

    def arm(self, occurrence: int) -> None:
        """Have the fault hit the site's next run, or the run that comes `occurrence` runs later."""
        self._countdown = occurrence + 1

    def firing(self) -> Firing | None:
        """Return the record of the fault so far; None: it has neither fired nor met other shapes."""
        number = self._injection.array("keep").size
        if not self._fired and not self._misfits:
            return None
        golden, injected = (each[:number].astype(self.width.newbyteorder("<")).tobytes() for each in self._arrays[-len(_VALUES) :])
        return Firing(self._fired, golden, injected, self._misfits)

    def cells(self, spots: Sequence[Spot], armed: Spot | None = None) -> list[Any]:
        """Return the cells for a call of a function with some spots, of which one may be armed."""
        counts = np.zeros(len(spots) + 2, np.int32)
        counts[_FIRED], counts[_WORKER] = self._fired, self._injection.worker
        if armed is not None:
            counts[spots.index(armed)] = self._countdown
        return [counts, *self._arrays]

    def take(self, cells: Sequence[Any], spots: Sequence[Spot], armed: Spot) -> None:
        """Take over the cells that such a call has returned."""
        counts, *self._arrays = map(np.asarray, cells)
        self._countdown, self._fired = int(counts[spots.index(armed)]), int(counts[_FIRED])

    def _has_shapes(self, equation: JaxprEqn) -> bool:
        """Return whether an equation has the shapes that the injection is for."""
        injection = self._injection
        outputs = equation.outvars[self._output : self._output + 1]
        target = outputs if injection.operand == "output" else [equation.invars[injection.index or 0]]
        has_shape = all((tuple(each.aval.shape), dtype_named(each)) == (injection.shape, injection.dtype) for each in target)
        size = int(np.prod(outputs[0].aval.shape)) if outputs else 0
        limited = injection.array("limited")
        has_outputs = not limited.size or (limited.max() < size and injection.outputs in (0, size))
        return bool(target) and has_shape and has_outputs


class Spots(Rewriting):
    """Spots that are put into a function, with the cells of an injection point."""

    def __init__(self, spots: Sequence[Spot], cells: Sequence[Any]) -> None:
        here: dict[Path, list[tuple[int, Spot]]] = {}
        for number, spot in enumerate(spots):
            here.setdefault(spot.path, []).append((number, spot))
        edits: dict[Path, Edit] = {path: functools.partial(self._put, each) for path, each in here.items()}
        super().__init__([jax.core.ShapedArray(each.shape, each.dtype) for each in cells], edits)

    def spread(self, cells: list[Any], devices: int) -> list[Any]:
        """Return the cells of each device; a countdown can end only on the device of the fault. The number that is left
        of that device's is the number of a device inside of it.
        """
        counts, *others = super().spread(cells, devices)
        worker = cells[0][_WORKER]
        is_hit = jnp.arange(devices, dtype=np.int32) == worker % devices
        counts = counts.at[:, :_FIRED].multiply(is_hit[:, None]).at[:, _WORKER].set(worker // devices)
        return [counts, *others]

    def joined(self, cells: list[Any], before: list[Any]) -> list[Any]:
        """Return the cells of the device of the fault."""
        worker = before[0][_WORKER]
        counts, *others = (each[worker % len(each)] for each in cells)
        return [counts.at[_WORKER].set(worker), *others]

    def _put(self, here: Sequence[tuple[int, Spot]], equation: JaxprEqn, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
        """Return an equation with its spots: first those of inputs, then the equation, then those of outputs; the cells
        go through them in that order.
        """
        ahead, behind = [], []
        for number, spot in here:
            if spot.operand is not None and not spot.is_limited:
                given, made = equation.invars[spot.operand], self._variables()
                faulty = Var(given.aval)
                ahead.append(call_of(functools.partial(_hit, number), [given, *cells], [faulty, *made], like=equation))
                invars = [*equation.invars[: spot.operand], faulty, *equation.invars[spot.operand + 1 :]]
                equation, cells = equation.replace(invars=invars), made
        left = [(number, spot) for number, spot in here if spot.operand is None or spot.is_limited]
        values = list(equation.outvars)
        now = [Var(each.aval) if place in {spot.output for _, spot in left} else each for place, each in enumerate(values)]
        equation = equation.replace(outvars=list(now))
        for place, (number, spot) in enumerate(left):
            is_last = all(other.output != spot.output for _, other in left[place + 1 :])
            target, made = values[spot.output] if is_last else Var(values[spot.output].aval), self._variables()
            hit = functools.partial(_hit, number)
            if spot.is_limited:
                mixed, inputs = _limited(hit, spot, equation), [list(equation.invars)]
            else:
                mixed, inputs = hit, []
            behind.append(call_of(mixed, [now[spot.output], *inputs, *cells], [target, *made], like=equation))
            now[spot.output], cells = target, made
        return [*ahead, equation, *behind], cells

    def _variables(self) -> list[Any]:
        return [Var(each) for each in self.cells]


def _limited(hit: Callable[..., Any], spot: Spot, equation: JaxprEqn) -> Callable[..., Any]:
    """Return a function that puts in a fault of an input that only some outputs see; it runs the equation again."""
    run, index = _as_function(equation, spot.output), spot.operand or 0

    def mixed(golden: Any, inputs: list[Any], *cells: Any) -> tuple[Any, ...]:
        def again(operand: Any, limited: Any) -> Any:
            faulty = run(*inputs[:index], operand, *inputs[index + 1 :])
            seen = faulty.reshape(-1)[limited]
            return golden.reshape(-1).at[limited].set(seen).reshape(golden.shape)

        faulty, *behind = hit(inputs[index], *cells)
        is_now = behind[0][_FIRED] != cells[0][_FIRED]
        result = lax.cond(is_now, again, lambda _operand, _limited: golden, faulty, cells[CELLS.index("limited")])
        return result, *behind

    return mixed


def _hit(
    number: int, value: Any, counts: Any, positions: Any, sources: Any, limited: Any, keep: Any, flip: Any, *values: Any
) -> tuple[Any, ...]:
    """Return a value, under the fault if that is due now, and the cells. `number`: the number of the spot."""
    counts = counts.at[number].add(-1)
    is_now = counts[number] == 0

    def hit(value: Any, *_values: Any) -> tuple[Any, ...]:
        bits = _bits(value).reshape(-1)
        met = bits[positions]
        changed = bits.at[positions].set((bits[sources] & keep) ^ flip)
        return _value(changed.reshape(value.shape), value.dtype), met, changed[positions]

    value, *values = lax.cond(is_now, hit, lambda *unchanged: unchanged, value, *values)
    counts = counts.at[_FIRED].add(is_now.astype(np.int32))
    return value, counts, positions, sources, limited, keep, flip, *values


def _bits(value: Any) -> Any:
    """Return the bit patterns of a value, as unsigned integers of whole bytes."""
    dtype = bits_of(str(value.dtype))
    if dtype.width >= 8:
        return lax.bitcast_convert_type(value, dtype.unsigned)
    return (value if dtype.width == 1 else lax.bitcast_convert_type(value, jnp.uint4)).astype(dtype.unsigned)


def _value(bits: Any, dtype: Any) -> Any:
    width = bits_of(str(dtype)).width
    return bits != 0 if width == 1 else lax.bitcast_convert_type(bits if width >= 8 else bits.astype(jnp.uint4), dtype)


def _as_function(equation: JaxprEqn, output: int) -> Callable[..., Any]:
    """Return a function that computes one output of an equation from its inputs."""
    inputs = [Var(each.aval) for each in equation.invars]
    outputs = [Var(each.aval) for each in equation.outvars]
    run = jaxpr_as_fun(ClosedJaxpr(Jaxpr([], inputs, [outputs[output]], [equation.replace(invars=inputs, outvars=outputs)]), []))
    return lambda *values: run(*values)[0]
