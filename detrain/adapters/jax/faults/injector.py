"""Puts a fault into a compiled function: an equation behind, or before, that of the site. It takes the plan in from the
cells, so that arming, and another plan, compile nothing.

At the site stands `cond(is it now)`: else the value is handed on as it is. All that is done is done to bit patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from detrain.adapters.jax.faults.equations import Equation, Path, dtype_named
from detrain.adapters.jax.faults.rewriting import Changes, Edit, call_of
from detrain.adapters.jax.private_names import Var
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named as bits_of
from detrain.faults.experiment import Firing, Injection
from detrain.faults.sites import op_and_output

_POSITIONS: Final = ("positions", "sources", "limited")
_VALUES: Final = ("golden", "injected")
_COUNTDOWN, _FIRED = 0, 1
CELLS: Final = ("counts", *_POSITIONS, "keep", "flip", *_VALUES)
"""What the cells of a point hold, in their order: [countdown, how often it was put in]; the injection's arrays; the bit
patterns that were met, and made."""


class InjectionPoint:
    """The point at which injections of one place are put, one of them at a time."""

    def __init__(self, injections: Sequence[Injection]) -> None:
        first = self._injection = injections[0]
        self.place: Final = first.place
        self.op, self._output = op_and_output(first.site)
        self._width: Final = bits_of(first.dtype).unsigned
        if self._width.itemsize == 8 and not jax.config.jax_enable_x64:
            raise FaultInvalid(
                f"{first.site!r} has values of 64 bits, and jax_enable_x64 is off", "the fault is of another program"
            )
        self.worker: Final = first.worker
        self._sizes: Final = {name: max(each.array(name).size for each in injections) for name in (*_POSITIONS, "keep")}
        self._unhit: list[Any] = []
        self._idle: list[Any] = []
        self._cells: list[Any] = []
        """The cells of this injection, while it is armed and as it has left them."""
        self._is_armed = False
        self._misfits = 0
        self.is_placed = False
        self.other: Equation | None = None
        """An equation that is called as the site is, and is another one."""
        self.select(first)

    def takes(self, injection: Injection) -> bool:
        """Return whether an injection is of this place."""
        return self.place == injection.place

    def fits(self, name: str, equation: Equation) -> bool | None:
        """Return whether an equation has the shapes that the injection is for; None if it is not the one that is to be
        hit.
        """
        if name != self.op:
            return None
        if self._injection.signature not in ("", equation.signature):
            self.other = equation
            return None
        self.is_placed = True
        return self._has_shapes(equation.value)

    def select(self, injection: Injection) -> None:
        """Put this injection in from now on; nothing has been done of it."""
        self._injection, self._misfits = injection, 0
        values = np.zeros(self._sizes["keep"], self._width)
        arrays = {name: self._filled(injection.array(name), self._sizes[name]).astype(np.int32) for name in _POSITIONS}
        patterns = {name: self._filled(injection.array(name), self._sizes["keep"]).view(self._width) for name in ("keep", "flip")}
        found = {"counts": np.zeros(2, np.int32), **arrays, **patterns, **dict.fromkeys(_VALUES, values)}
        self._cells = [np.array(found[name]) for name in CELLS]
        self._unhit, self._idle = [np.array(each) for each in self._cells], []

    @property
    def idle(self) -> list[Any]:
        """The cells with which nothing is hit, on a device: they are made when they are asked for, as the program may
        say first how many devices there are.
        """
        self._idle = self._idle or [jax.device_put(each) for each in self._unhit]
        return self._idle

    @staticmethod
    def _filled(array: Any, size: int) -> Any:
        """Return an array of the length that all injections fit into: the first element is repeated."""
        return np.concatenate([array, np.repeat(array[:1], size - array.size)])

    def arm(self, occurrence: int) -> None:
        """Have the next run of the site, or one so many runs later, hit."""
        self._is_armed = True
        self._cells[0] = np.array([occurrence + 1, self._cells[0][_FIRED]], np.int32)

    def disarm(self) -> None:
        """Have no run hit."""
        self._is_armed = False

    def firing(self) -> Firing | None:
        """Return what has been done so far; None: nothing."""
        cells = dict(zip(CELLS, self._cells, strict=True))
        count, number = int(cells["counts"][_FIRED]), self._injection.array("keep").size
        if not count and not self._misfits:
            return None
        golden, injected = (cells[name][:number].astype(self._width.newbyteorder("<")).tobytes() for name in _VALUES)
        return Firing(count, golden, injected, self._misfits)

    # The values that a call takes in, and gives.

    @property
    def types(self) -> list[Any]:
        """The types of its cells."""
        return [jax.core.ShapedArray(each.shape, each.dtype) for each in self._cells]

    def cells(self) -> list[Any]:
        """Return the cells for a call of the function."""
        return list(self._cells) if self._is_armed else self.idle

    def note_misfit(self) -> None:
        """A function has been called in which its site has other shapes."""
        self._misfits += self._is_armed

    def take(self, cells: Sequence[Any]) -> None:
        """A call has given its cells."""
        if self._is_armed:
            self._cells = [np.array(each) for each in cells]

    # The equations.

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

    def edit(self, first: int) -> Edit:
        """Return what puts it in, where its cells are those from the number `first` on."""
        place = slice(first, first + len(CELLS))

        def put(equation: JaxprEqn, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
            made = [Var(each) for each in self.types]
            behind = [*cells[:first], *made, *cells[place.stop :]]
            index, operand = self._injection.index or 0, self._injection.operand
            if operand == "output":
                value = equation.outvars[self._output]
                golden = Var(value.aval)
                outvars: list[Any] = [*equation.outvars]
                outvars[self._output] = golden
                added = call_of(_hit, [golden, *cells[place]], [value, *made], like=equation)
                return [equation.replace(outvars=outvars), added], behind
            invars: list[Any] = [*equation.invars]
            faulty = Var(invars[index].aval)
            invars[index] = faulty
            before = call_of(_hit, [equation.invars[index], *cells[place]], [faulty, *made], like=equation)
            if not self._injection.limited:
                return [before, equation.replace(invars=invars)], behind
            return self._limited(equation, index, cells[place], made), behind

        return put

    def _limited(self, equation: JaxprEqn, index: int, cells: Sequence[Any], made: Sequence[Any]) -> list[JaxprEqn]:
        """Return the equation with a fault that some of its outputs alone see: when it hits, it is run once more."""
        value = equation.outvars[self._output]
        golden = Var(value.aval)
        outvars: list[Any] = [*equation.outvars]
        outvars[self._output] = golden
        run = _as_function(equation, self._output)

        def mixed(golden: Any, inputs: list[Any], cells: list[Any]) -> tuple[Any, list[Any]]:
            def again(operand: Any, limited: Any) -> Any:
                faulty = run(*inputs[:index], operand, *inputs[index + 1 :])
                seen = faulty.reshape(-1)[limited]
                return golden.reshape(-1).at[limited].set(seen).reshape(golden.shape)

            counts = cells[0]
            faulty, *behind = _hit(inputs[index], *cells)
            is_now = behind[0][_FIRED] != counts[_FIRED]
            result = lax.cond(is_now, again, lambda _operand, _limited: golden, faulty, cells[CELLS.index("limited")])
            return result, behind

        inputs = list(equation.invars)
        added = call_of(mixed, [golden, inputs, list(cells)], [value, *made], like=equation)
        return [equation.replace(outvars=outvars), added]


class Points(Changes):
    """Points that are put into a function."""

    def __init__(self, points: Sequence[InjectionPoint], edits: Mapping[Path, Edit]) -> None:
        super().__init__([each for point in points for each in point.types], edits)
        self._workers = [point.worker for point in points]

    def spread(self, cells: list[Any], devices: int) -> list[Any]:
        """Return them for each device: that of the fault alone counts down."""
        found = super().spread(cells, devices)
        for number, worker in enumerate(self._workers):
            place = number * len(CELLS)
            found[place] = found[place].at[:, _COUNTDOWN].multiply(np.arange(devices, dtype=np.int32) == worker)
        return found

    def joined(self, cells: list[Any]) -> list[Any]:
        """Return what the device of the fault has of each."""
        return [each[self._workers[place // len(CELLS)]] for place, each in enumerate(cells)]


def _hit(
    value: Any, counts: Any, positions: Any, sources: Any, limited: Any, keep: Any, flip: Any, *values: Any
) -> tuple[Any, ...]:
    """Return a value under the fault, if it is now, and the cells."""
    counts = counts.at[_COUNTDOWN].add(-1)
    is_now = counts[_COUNTDOWN] == 0

    def hit(value: Any, *_values: Any) -> tuple[Any, ...]:
        bits = _bits(value).reshape(-1)
        met = bits[positions]
        changed = bits.at[positions].set((bits[sources] & keep) ^ flip)
        return _value(changed.reshape(value.shape), value.dtype), met, changed[positions]

    value, *values = lax.cond(is_now, hit, lambda *unchanged: unchanged, value, *values)
    counts = counts.at[_FIRED].add(is_now.astype(np.int32))
    return value, counts, positions, sources, limited, keep, flip, *values


def _bits(value: Any) -> Any:
    """Return the bit patterns of a value, as unsigned integers."""
    unsigned = bits_of(str(value.dtype)).unsigned
    return value.astype(unsigned) if value.dtype == np.dtype(bool) else lax.bitcast_convert_type(value, unsigned)


def _value(bits: Any, dtype: Any) -> Any:
    return bits != 0 if dtype == np.dtype(bool) else lax.bitcast_convert_type(bits, dtype)


def _as_function(equation: JaxprEqn, output: int) -> Callable[..., Any]:
    """Return a function that gives one output of an equation of its inputs."""
    inputs = [Var(each.aval) for each in equation.invars]
    outputs = [Var(each.aval) for each in equation.outvars]
    run = jaxpr_as_fun(ClosedJaxpr(Jaxpr([], inputs, [outputs[output]], [equation.replace(invars=inputs, outvars=outputs)]), []))
    return lambda *values: run(*values)[0]
