"""The adapter for JAX 0.10 to 0.12, with flax, optax and equinox.

A JAX program's state is the arrays that its names lead to, in tuples, dicts and objects, which the codec walks. Arrays
are replaced and never changed. JAX has no random streams of its own: keys are arrays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

import jax

from detrain.adapters.api import Adapter, Settings
from detrain.adapters.jax import private_names, shardings
from detrain.adapters.jax import settings as flags
from detrain.adapters.jax.faults.instruments import JaxInstruments
from detrain.adapters.jax.guard import AdamDecays, JaxNorms, JaxRollback
from detrain.adapters.jax.leaves import NAME, JaxLeaves, JaxRules
from detrain.adapters.jax.named_arrays import NamedArrays
from detrain.adapters.jax.processes import JaxProcesses
from detrain.adapters.jax.traces import EagerControl, Traces
from detrain.adapters.jax.updates import JaxUpdates
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported
from detrain.base.options import Mode
from detrain.python.inspect.tracing import add_test
from detrain.python.process.random_streams import Streams

_OPTIMIZERS: Final = {"optax": ("_src.update",), "equinox": ("_update",)}
"""Libraries whose `apply_updates` adds an optimizer's updates to weights, and their other modules that have it."""


class Jax(Adapter):
    """See `detrain.adapters.api.Adapter`. Make one right after JAX was imported, before the program uses it."""

    name = NAME

    def __init__(self, settings: Settings, _streams: Streams) -> None:
        self._settings = settings
        add_test(private_names.is_traced)
        self.rules = JaxRules()
        self._processes = JaxProcesses(settings)
        self._meshes: str | None = None
        is_inference = settings.experiment is not None and settings.experiment.plans[0].is_inference
        self._updates = JaxUpdates((lambda _what: None) if is_inference else settings.on_update)
        self._traces, self._watched = Traces(self._fail), set[str]()
        self._control = EagerControl(self._fail)
        self.leaves = JaxLeaves(self._updates)
        self.names = NamedArrays()
        self.rollback = rollback = JaxRollback()
        self._decays = AdamDecays()
        self.norms = JaxNorms(self._decays)
        if settings.experiment is not None:
            instruments = JaxInstruments(settings.experiment, settings.on_update)
            self._updates.on_gradient = instruments.losses.note
            rollback.undo = instruments.memory_of_arrays.undo
            settings.experiment.attach(instruments)
        for module in _OPTIMIZERS:
            if hasattr(sys.modules.get(module), "apply_updates"):  # a library that is still importing JAX has none yet
                self.on_import(module)

    def on_import(self, module: str) -> None:
        """Watch the updates that a newly imported library makes."""
        if module in _OPTIMIZERS and module not in self._watched:
            self._watched.add(module)
            if module == "optax":
                self._decays.watch(sys.modules[module])
            self._updates.watch_optimizers(sys.modules[module], *_OPTIMIZERS[module])

    def state(self) -> bytes:
        """Return JAX's flags, digests of traces, flax's count of modules, and the meshes that are set, as JSON."""
        state = {
            "flags": flags.flags(),
            "traces": self._traces.state(),
            "control": self._control.state(),
            "modules": flags.count_of_modules(),
            "meshes": shardings.contexts(),
        }
        return json.dumps(state, sort_keys=True).encode()

    def set_state(self, state: bytes, _positions: Mapping[str, Array], _mode: Mode) -> None:
        """Set JAX's flags, flax's count and the mesh; from now on functions must be traced as in the first run."""
        was = json.loads(state)
        flags.set_flags(was["flags"])
        self._traces.expect(was["traces"])
        self._control.expect(was.get("control", {}))  # checkpoints of earlier versions have none
        flags.set_count_of_modules(was["modules"])
        if "meshes" in was:  # checkpoints of earlier versions have none
            shardings.set_contexts(was["meshes"])

    def environment(self) -> dict[str, str]:
        """Return the facts that decide about bits, besides versions: devices, processes, and the meshes that the
        program had before its first loop.
        """
        meshes = {"jax meshes": self._meshes} if self._meshes else {}
        return flags.environment() | self._processes.environment() | meshes

    def begin_phase(self) -> None:
        """Note the meshes, once. Raises FrameworkUnsupported for processes that do not belong together."""
        if self._meshes is None:
            self._meshes = shardings.in_use()
        try:
            self._processes.check()
        except FrameworkUnsupported as error:
            self._fail(error)

    def flush(self) -> None:
        """Wait until the callbacks of compiled functions have run: they may print, draw and write."""
        jax.effects_barrier()

    def _fail(self, error: Exception) -> NoReturn:
        """End the process with an error, which the program must not catch; raise it where no program runs."""
        probes = self._settings.probes
        if probes is not None:
            probes.fail(error)
        raise error
