"""JAX's side of an experiment: the equations of the step, the fault, the losses; made before the program uses JAX.

Layers of nnx and equinox, whose calls JAX does not see, run in a scope with the name that leads to them in the program
(`model.blocks.0.attn`), as layers of linen do by themselves. Nothing else of a function changes.

Arrays of the program are sites in memory: their bits are changed in place, before a step runs. JAX never writes into an
existing array, and has no way to. On a CPU the array's memory is the process's own: a bit is changed there, and all
holders of the array see it. On other devices the memory cannot be reached.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from detrain.adapters.instruments import Also, Instruments, TakesInstruments
from detrain.adapters.jax.faults.forward_passes import JaxPasses
from detrain.adapters.jax.faults.functions import Functions
from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.adapters.jax.faults.site_of import sites_of
from detrain.adapters.jax.faults.step_loss import JaxLosses
from detrain.adapters.jax.named_arrays import NamedArrays
from detrain.adapters.keras_objects import KerasSeries
from detrain.base.digest import Array
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named, little_endian
from detrain.faults.experiment import BITS, Firing, Injection, refuse_several
from detrain.faults.sites import MEMORY, MemoryKind, Site, memory_site
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import own_attributes

_LIBRARIES: Final = (("flax.nnx", "Module", "flax.nnx"), ("equinox", "Module", "equinox.nn"))
"""(module, the class that all layers derive from, the package of the library's own layers)."""
_MOST: Final = 10_000
_running: Final[list[Any]] = []
"""The layers whose calls are being traced, the innermost last."""


class ArrayMemory:
    """The program's named arrays, as sites in memory."""

    def __init__(self) -> None:
        self._names = NamedArrays()
        self._weights: set[str] = set()
        self._struck: list[tuple[Any, Any, Any]] = []
        """Arrays whose bits were changed: each array, the positions, and the bits before."""

    def look(self) -> None:
        """Find the arrays that names lead to now."""
        self._names.look()

    def note_weights(self, weights: dict[int, Any]) -> None:
        """Note the names of the arrays that the step has taken gradients of; they had them when the step began."""
        self._weights |= {name for name, (array, _of) in self._names.found.items() if id(array) in weights}

    def sites(self) -> list[Site]:
        """Return the arrays as sites."""
        return [
            memory_site(name, self._kind(name, of), tuple(array.shape), str(array.dtype))
            for name, (array, of) in self._names.arrays().items()
            if str(array.dtype) in BITS and "int4" not in str(array.dtype) and len(array.sharding.device_set) == 1
        ]

    def _kind(self, name: str, of: str) -> MemoryKind:
        if name in self._weights:
            return "weight"
        return "slot" if of else "statistic"

    def undo(self) -> None:
        """Restore the bits of the arrays, as the run goes back to before their faults: a moment has no copies."""
        for array, at, golden in reversed(self._struck):
            if not array.is_deleted():
                _bits(array)[at] = golden
        self._struck = []

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of an array; None if none has that name, shape and dtype. Raises FaultInvalid off CPUs."""
        found = self._names.arrays().get(injection.site.removeprefix(MEMORY))
        array = None if found is None else found[0]
        if array is None or (str(array.dtype), tuple(array.shape)) != (injection.dtype, injection.shape):
            return None
        (device,) = array.sharding.device_set
        if device.platform != "cpu":
            raise FaultInvalid(
                f"{injection.site!r} lies on {device}: JAX lets no one write into an array there",
                "hit what an equation gives: `detrain sites` lists them",
            )
        jax.block_until_ready(array)
        golden, values = injection.put_into(_bits(array))
        self._struck.append((array, injection.array("positions"), golden))
        return Firing(1, little_endian(golden), little_endian(values))


def _bits(array: Any) -> Any:
    """Return the memory of an array on a CPU, as a writable array of its elements' bit patterns."""
    unsigned = dtype_named(str(array.dtype)).unsigned
    size = array.size * unsigned.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(array.unsafe_buffer_pointer()), unsigned)


class JaxInstruments(Instruments):
    """See `detrain.adapters.instruments.Instruments`."""

    is_part_of_steps: Final = True

    def __init__(self, experiment: TakesInstruments, on_pass: Callable[[int], None]) -> None:
        """`on_pass`: called after each forward pass, in an experiment on inference."""
        plans = experiment.plans
        self._passes = JaxPasses(on_pass) if plans[0].is_inference else None
        self._has_digests = plans[0].digests_at is not None
        self.memory_of_arrays = ArrayMemory()
        self.losses = JaxLosses(experiment.ends_with)
        self.series = KerasSeries("jax", self.losses, name_layers)  # the program's classes are made then, its step is not traced
        widths: dict[str, list[Injection]] = {}
        for plan in plans:
            if plan.injection is not None and not plan.injection.is_in_memory:
                widths.setdefault(dtype_named(plan.injection.dtype).unsigned.str, []).append(plan.injection)
        self._points = [InjectionPoint(injections) for injections in widths.values()]
        self._point: InjectionPoint | None = None
        self._functions = Functions(self.losses.hear, self._passes)
        if plans[0].injection is not None:
            self.select(plans[0].injection)

    def outputs(self) -> list[Array]:
        """Return the scores of the forward passes since the last call."""
        return [] if self._passes is None else self._passes.outputs()

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Take up one of the injections. Raises FaultInvalid for several at once."""
        refuse_several(1 + len(also))
        self._point = next((point for point in self._points if point.takes(injection)), None)
        if self._point is not None:
            self._point.select(injection)

    def begin_step(self) -> None:
        """Count calls, and note arrays and gradients, from here on."""
        self.memory_of_arrays.look()
        self.losses.begin()
        self._functions.begin(counts=not self._has_digests)
        self._functions.digests = [] if self._has_digests else None

    def arm(self, occurrence: int) -> None:
        """Put the site into this step, and have the fault hit it."""
        if self._point is not None:
            self._point.arm(occurrence)
            self._functions.point, self._functions.is_unarmed_equal = self._point, True

    def disarm(self) -> None:
        """Have the fault hit no more. Raises FaultInvalid if the site's name is that of another equation here."""
        point = self._point
        if point is None:
            return
        self._functions.point = None
        if not point.is_placed and point.other is not None:
            raise FaultInvalid(
                f"{point.op!r} is another equation here than the one that the fault is of: {_shown(point.other.value)}",
                "the function is traced to another jaxpr than in the run whose sites were listed; list them again",
            )

    def is_placed(self) -> bool:
        """Return whether the site is in a function that was called."""
        return self._point is not None and self._point.is_placed

    def firing(self) -> Firing | None:
        """Return the record of the fault so far."""
        return None if self._point is None else self._point.firing()

    def is_unarmed_equal(self) -> bool | None:
        """Return whether the unarmed site changes no bits in the step that was hit."""
        return None if self._point is None else self._functions.is_unarmed_equal

    def memory(self) -> list[Site]:
        """Return the program's named arrays as sites."""
        self.memory_of_arrays.note_weights(self.losses.weights())
        self.memory_of_arrays.look()
        return self.memory_of_arrays.sites()

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of one of these arrays."""
        self.memory_of_arrays.look()
        return self.memory_of_arrays.strike(injection)

    def digests(self) -> list[tuple[str, int, int]]:
        """Return digests of the outputs of each equation of the step, and of the inputs of its functions."""
        found, self._functions.digests = self._functions.digests or [], None
        return found

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended. Raises FaultInvalid if it is not compiled: if it called no
        compiled function, or takes its gradient outside of these.
        """
        called = self._functions.called()
        found = sites_of(called, self.losses.weights_of)
        is_eager = self.losses.takes_eagerly and self._passes is None and all(site.stage != "backward" for site in found)
        if not called or is_eager:
            how = "the program calls no function under `jax.jit` in it"
            if jax.config.jax_disable_jit:
                how = "jax_disable_jit is on"
            elif called:
                how = "its gradient is taken outside of functions under `jax.jit`"
            raise FaultInvalid(
                f"JAX computes this step op by op ({how}): there is no jaxpr of it whose equations could be hit",
                "put what the step computes into a function under `jax.jit`, and call that, not what `lower().compile()` gives",
            )
        return found


def _shown(equation: JaxprEqn) -> str:
    """Return an equation in a line."""
    given = ", ".join(str(each.aval) for each in equation.invars)
    made = ", ".join(str(each.aval) for each in equation.outvars)
    return f"{equation.primitive.name} of ({given}) to ({made})"


def name_layers() -> None:
    """Have the libraries' own layers, of the classes that exist now, run in scopes with their names."""
    for module, base, own in _LIBRARIES:
        root: Any = getattr(sys.modules.get(module), base, None)
        for cls in walk(root.__subclasses__(), lambda each: each.__subclasses__()) if root is not None else ():
            call = vars(cls).get("__call__")
            if cls.__module__.startswith(own) and call is not None and not hasattr(call, "_detrain_scope"):
                type.__setattr__(cls, "__call__", _scoped(call, root))


def _scoped(call: Any, root: type) -> Any:
    @functools.wraps(call)
    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(_name(self, root)):
            _running.append(self)
            try:
                return call(self, *args, **kwargs)
            finally:
                _running.pop()

    scoped._detrain_scope = True  # type: ignore[attr-defined]
    return scoped


def _name(layer: Any, root: type) -> str:
    """Return the name that leads to a layer from the layer that calls it, in whose scope it runs, or from the program's
    outermost frame with such a name; else its class's (a cell that a library runs in a loop is a copy).
    """
    frames = (frame.f_locals.items() for frame in user_frames(sys._getframe())[::-1])
    for names in (*(_below(("", each), root) for each in _running[-1:]), *frames):
        held = [(name.lstrip("."), value) for name, value in names if isinstance(value, root)]
        for name, value in walk(held, functools.partial(_below, root=root), lambda at: id(at[1]), most=_MOST):
            if value is layer:
                return name
    return type(layer).__name__


def _below(at: tuple[str, Any], root: type) -> Iterator[tuple[str, Any]]:
    name, value = at
    if isinstance(value, root):
        inside: Any = (own_attributes(value) or {}).items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    elif isinstance(value, dict):
        inside = value.items()
    else:
        return
    yield from ((f"{name}.{step}", each) for step, each in inside if isinstance(each, root | list | tuple | dict))
