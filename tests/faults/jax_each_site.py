"""Each site of a step of JAX is hit once, and compared with the step's jaxpr run equation by equation with the fault
put in by NumPy. Run by test_jax in a process of its own; it reads the sites, and prints the differences.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import msgspec
import numpy as np
from jax.extend.core import Literal

from detrain.adapters.jax.faults import functions
from detrain.adapters.jax.faults.equations import Equation, dtype_named
from detrain.adapters.jax.faults.injector import Spot
from detrain.adapters.jax.faults.sites_together import outputs
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named as bits_of
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site, op_and_output
from tests.faults.jax_by_hand import begin, program_named


@dataclass
class ByHand:
    """An interpreter of a jaxpr that runs each equation by itself, and puts one fault in."""

    injection: Injection
    occurrence: int
    runs: int = 0

    def __post_init__(self) -> None:
        name, self.output = op_and_output(self.injection.site)
        self.path = tuple(map(int, name.rpartition("@")[2].split(".")))

    def jaxpr(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], path: tuple[int, ...] = ()) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

        def read(variable: Any) -> Any:
            return variable.val if isinstance(variable, Literal) else values[variable]

        for number, equation in enumerate(jaxpr.eqns):
            outputs = self.equation(equation, [read(each) for each in equation.invars], (*path, number))
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(each) for each in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any], path: tuple[int, ...]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if name in ("jit", "remat2", "custom_jvp_call", "custom_vjp_call", "closed_call"):
            return self.jaxpr(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs, path)
        if name == "scan":
            of_kind = (params["num_consts"], params["num_carry"]) if "num_consts" in params else map(len, params["ft_in"].unpack())
            first, carried, *_rows = of_kind
            last = first + carried
            carry, rows = inputs[first:last], []
            turns = range(params["length"])
            for turn in reversed(turns) if params["reverse"] else turns:
                given = [*inputs[:first], *carry, *(each[turn] for each in inputs[last:])]
                made = self.jaxpr(inner.jaxpr, inner.consts, given, path)
                carry = made[: last - first]
                rows.append(made[last - first :])
            rows = rows[::-1] if params["reverse"] else rows
            return [*carry, *(jax.numpy.stack(column) for column in zip(*rows, strict=True))]
        if name == "while":
            first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            carry = inputs[last:]
            loop = [(params[name].jaxpr, params[name].consts) for name in ("cond_jaxpr", "body_jaxpr")]
            while self.jaxpr(*loop[0], [*inputs[:first], *carry], (*path, 0))[0]:
                carry = self.jaxpr(*loop[1], [*inputs[first:last], *carry], (*path, 1))
            return carry
        if name == "cond":
            last = len(params["branches"]) - 1
            chosen = int(inputs[0]) if 0 <= int(inputs[0]) < last else last  # as XLA does if no branch has the number
            return self.jaxpr(params["branches"][chosen].jaxpr, params["branches"][chosen].consts, inputs[1:], (*path, chosen))
        is_now = path == self.path and self.runs == self.occurrence
        self.runs += path == self.path
        if not is_now:
            return run(equation, inputs)
        if self.injection.operand == "output":
            outputs = run(equation, inputs)
            outputs[self.output] = self.changed(outputs[self.output])
            return outputs
        place = self.injection.index or 0
        faulty = [*inputs[:place], self.changed(inputs[place]), *inputs[place + 1 :]]
        outputs, seen = run(equation, faulty), self.injection.array("limited")
        if seen.size:
            golden = np.array(run(equation, inputs)[0])
            golden.reshape(-1)[seen] = np.array(outputs[0]).reshape(-1)[seen]
            outputs[0] = jax.numpy.asarray(golden)
        return outputs

    def changed(self, value: Any) -> Any:
        values = np.array(value)
        width = np.dtype(f"u{values.itemsize}")
        bits = values.reshape(-1).view(width)
        before, mask = bits.copy(), (1 << 8 * values.itemsize) - 1
        arrays = [self.injection.array(name) for name in ("positions", "sources", "keep", "flip")]
        for position, source, keep, flip in zip(*arrays, strict=True):
            bits[position] = (int(before[source]) & (int(keep) & mask)) ^ (int(flip) & mask)
        return jax.numpy.asarray(values)


def run(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run an equation by itself; constants of the program's text are compiled in, as they are in the step."""
    places = [place for place, each in enumerate(equation.invars) if not isinstance(each, Literal)]
    if id(equation) not in compiled:

        def alone(*given: Any) -> Any:
            values = [each.val if isinstance(each, Literal) else None for each in equation.invars]
            for place, value in zip(places, given, strict=True):
                values[place] = value
            return equation.primitive.bind(*values, **equation.params)

        compiled[id(equation)] = jax.jit(alone)
    is_changed = any(inputs[place] is not each.val for place, each in enumerate(equation.invars) if isinstance(each, Literal))
    made = (
        equation.primitive.bind(*inputs, **equation.params)
        if is_changed
        else compiled[id(equation)](*(inputs[place] for place in places))
    )
    return list(made) if equation.primitive.multiple_results else [made]


compiled: dict[int, Any] = {}


def all_spots(equations: Sequence[Equation], width: Any) -> list[Spot]:
    """Return all outputs of a function that are sites: XLA does not fuse equations that run by themselves."""
    found = [(Spot(each.path, number), dtype_named(variable)) for each in equations for number, variable in outputs(each)]
    return [spot for spot, dtype in found if bits_of(dtype).unsigned == width]


def _bits(value: Any) -> bytes:
    """Return the bits of a result. IEEE 754 leaves the sign of a NaN open: it follows from the order of operands, and a
    fusion may exchange these.
    """
    found = np.array(value)
    if np.issubdtype(found.dtype, np.floating):
        found[np.isnan(found)] = np.nan
    return found.tobytes()


def is_wide(site: Site) -> bool:
    """Return True if a site's elements have 32 bits. Spots of another width are not in its copy, and equations between
    such spots are compiled together, unlike in the oracle (`jax_dtypes` hits these).
    """
    return bits_of(site.operands["output"].dtype).unsigned.itemsize == 4


def main(most: str, every: str = "1", first: str = "0") -> None:
    """Hit each site, or each `every`th from the one with number `first` on, by `most` models at most."""
    chosen, known = [], msgspec.json.decode(sys.stdin.read(), type=list[Site])
    models = list(PUBLISHED)
    wide = [site for site in known if site.stage != "memory" and site.is_alive and is_wide(site)]
    for number, site in list(enumerate(wide))[int(first) :: int(every)]:
        fitting = []
        for model in models:
            try:
                fitting.append((model, draw_injection(site, PUBLISHED[model], 0, trial_rng(number, 5))))
            except FaultInvalid:
                continue
        turned = number % len(fitting)
        chosen += [(site, *each) for each in [*fitting[turned:], *fitting[:turned]][: int(most)]]
    instruments = begin([Experiment(log="", injection=injection) for _site, _model, injection in chosen])

    functions.spots_together = all_spots
    functions.copies = lambda together, wanted: [(*together, *(each for each in wanted if each not in together))]

    program = program_named()
    step, golden = program.compiled(), program.given()
    traced = step.trace(*golden)
    leaves = jax.tree.leaves(golden)
    wrong: list[str] = []
    for site, model, injection in chosen:
        occurrence = site.executions - 1
        instruments.select(injection)
        instruments.arm(occurrence)
        found = jax.tree.leaves(step(*golden))
        instruments.disarm()
        firing = instruments.firing()
        by_hand = ByHand(injection, occurrence)
        expected = by_hand.jaxpr(traced.jaxpr.jaxpr, traced.jaxpr.consts, leaves)
        differing = sum(_bits(a) != _bits(b) for a, b in zip(found, expected, strict=True))
        if differing:
            wrong.append(f"{site.name} {model}: {differing} results differ")
        if firing is None or firing.count != 1:
            wrong.append(f"{site.name} {model}: done {0 if firing is None else firing.count} times")
    print(json.dumps({"wrong": wrong, "tried": len(chosen), "sites": len({site.name for site, *_rest in chosen})}))


if __name__ == "__main__":
    main(*sys.argv[1:])
