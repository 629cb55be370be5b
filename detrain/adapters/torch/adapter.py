"""The adapter for PyTorch 2.9 to 2.15.

PyTorch's state is in Python attributes (of modules, optimizers, schedulers, scalers, samplers), which the codec walks;
tensors are leaves there. The adapter uses public API where there is one, and checks private parts when it is made.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from detrain.adapters.api import Adapter, Settings
from detrain.adapters.torch import lost_graph
from detrain.adapters.torch import settings as flags
from detrain.adapters.torch.compiler.history import History
from detrain.adapters.torch.data.loaders import TorchLoaders
from detrain.adapters.torch.devices import TorchDevices
from detrain.adapters.torch.distributed.fully_sharded import FullySharded
from detrain.adapters.torch.distributed.processes import Processes
from detrain.adapters.torch.distributed.spread_tensors import SpreadTensors
from detrain.adapters.torch.guard.norms import TorchNorms
from detrain.adapters.torch.guard.rollback import TorchRollback
from detrain.adapters.torch.leaves import TorchLeaves
from detrain.adapters.torch.named_objects import NamedObjects
from detrain.adapters.torch.settings import GlobalHooks
from detrain.adapters.torch.streams import TorchStreams, watch_seeds
from detrain.adapters.torch.tensors import TorchTensors
from detrain.adapters.torch.updates import ForwardPasses, TorchUpdates
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported
from detrain.base.in_place import in_place_of
from detrain.base.options import Mode
from detrain.python.inspect.tracing import add_test
from detrain.python.process.random_streams import Streams

if TYPE_CHECKING:
    from detrain.adapters.torch.faults.instruments import TorchInstruments

_compiler: Final[Callable[[], object]] = torch._C._dynamo.eval_frame.get_eval_frame_callback
_transformation: Final[Callable[[], object]] = torch._C._functorch.peek_interpreter_stack
_SERIALIZE: Final = "serialize_file"
"""The function by which the modules of safetensors write a file."""
_SAFETENSORS: Final = ("safetensors.torch", "safetensors.numpy")


def _is_inside() -> bool:
    """Return whether code runs inside of a call of a compiled function, between two of its graphs, or of
    `torch.func.grad`, `vmap` or their like.
    """
    return _compiler() is not None or _transformation() is not None


class Torch(Adapter):
    """See `detrain.adapters.api.Adapter`. Make it right after the import of PyTorch, before the program uses it."""

    name = "torch"
    devices: TorchDevices
    loaders: TorchLoaders

    def __init__(self, settings: Settings, _streams: Streams) -> None:
        self._settings = settings
        add_test(torch.compiler.is_compiling, is_first=True)
        add_test(_is_inside)
        flags.fix(settings.seed, settings.threads)
        watch_seeds()
        self.devices = TorchDevices()
        self.shared = TorchTensors(self.devices)
        self.names = NamedObjects()
        self.random = TorchStreams()
        fail = getattr(settings.probes, "fail", None)
        self.loaders = TorchLoaders(settings.moment, settings.elements, fail)
        if fail is not None:
            lost_graph.fail_by(fail)
        self._fully_sharded = FullySharded()
        is_inference = settings.experiment is not None and settings.experiment.plans[0].is_inference
        passes = ForwardPasses(settings.on_update) if is_inference else None
        self._updates = passes or TorchUpdates(settings.on_update, self._fully_sharded.kept_of)
        self.building = self._fully_sharded
        self._spread = SpreadTensors(self._fully_sharded)
        self.leaves = TorchLeaves(self.loaders, self._spread, self.devices)
        self._hooks = GlobalHooks()
        self._compiled = History(getattr(settings.probes, "fail", None))
        self.norms = TorchNorms()
        self._processes = Processes(settings.ranks, settings.on_peer_error, settings.on_unheld, self._fully_sharded, fail)
        self.replicas = self._processes.buckets
        self.rollback = TorchRollback(self.loaders, self._hooks, self._compiled, self.replicas)
        self._instruments: TorchInstruments | None = None
        if settings.experiment is not None:
            from detrain.adapters.torch.faults.instruments import TorchInstruments  # a run without faults does without

            self._instruments = TorchInstruments(settings.experiment, self._compiled, passes)
            settings.experiment.attach(self._instruments)
        self._saved = SavedFiles(partial(settings.contents.writes, how="written")) if settings.contents is not None else None

    def on_import(self, module: str) -> None:
        """Hook the compiler and functions that save files, once the program has imported their modules."""
        self._compiled.on_import(module)
        if self._instruments is not None:
            self._instruments.on_import(module)
        if self._saved is not None:
            self._saved.on_import(module)

    def state(self) -> bytes:
        """Return the process's settings, counts of iterators and hooks, and state of FSDP2, DDP and the compiler."""
        state = {
            "flags": flags.flags(),
            "loaders": self.loaders.counts(),
            "hooks": self._hooks.count(),
            "fully sharded": self._fully_sharded.state(),
            **({} if self._processes.buckets is None else {"buckets": self._processes.buckets.state()}),
            **({"devices": seen} if (seen := self.devices.seen()) else {}),
            **({"compiled": compiled} if (compiled := self._compiled.state()) is not None else {}),
        }
        return json.dumps(state, sort_keys=True).encode()

    def set_state(self, state: bytes, positions: Mapping[str, Array], mode: Mode) -> None:
        """Restore the result of `state`; bring loaders to their positions."""
        was = json.loads(state)
        if self._processes.buckets is not None:
            self._processes.buckets.restore(was.get("buckets", []))  # first: it moves streams, and leaves gradients
        self._fully_sharded.restore(was.get("fully sharded", []))
        flags.set_flags(was["flags"])
        self._compiled.restore(was.get("compiled"))
        self.loaders.restore(was["loaders"], positions, mode)
        self._hooks.set_count(was["hooks"])

    def environment(self) -> dict[str, str]:
        """Return the facts, besides versions, that decide about bits: processor, devices, backend of process groups."""
        return flags.environment() | self._processes.environment()

    def begin_phase(self) -> None:
        """Fix again the settings that the program has changed. Raises FrameworkUnsupported for processes that are not
        exact.
        """
        try:
            self._processes.check()
        except FrameworkUnsupported as error:
            if self._settings.probes is None:
                raise
            self._settings.probes.fail(error)
        flags.refix()
        self._hooks.begin_phase()
        self._fully_sharded.begin_phase()
        self._spread.begin_phase()

    def uncaptured(self) -> list[str]:
        """Return descriptions of uncaptured state that PyTorch keeps for the process; the codec names the rest."""
        keep = (self._hooks, self._fully_sharded, self._spread, self._compiled, self.loaders)
        return [loss for each in keep for loss in each.uncaptured()]

    def at_rest(self) -> AbstractContextManager[None]:
        """Inside, modules under FSDP2 have their shards. A walk over the program's objects is about to begin."""
        self.devices.forget()
        return self._fully_sharded.at_rest()


class SavedFiles:
    """Reports the path of each file that PyTorch or safetensors writes from here on."""

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        save = torch.save

        @in_place_of(torch, "save")
        def saved(obj: object, f: Any, *arguments: Any, **keywords: Any) -> None:
            self._tell(f)
            save(obj, f, *arguments, **keywords)

        save_script = torch.jit.RecursiveScriptModule.save  # called by `torch.jit.save`, too

        @in_place_of(torch.jit.RecursiveScriptModule, "save", torch.jit.ScriptModule)
        def saved_script(module: torch.jit.RecursiveScriptModule, f: Any, **keywords: Any) -> None:
            self._tell(f)
            save_script(module, f, **keywords)

        self.on_import("")

    def on_import(self, _module: str) -> None:
        """Wrap the writing functions of safetensors' modules that have been imported."""
        for name in _SAFETENSORS:
            module = sys.modules.get(name)
            serialize = vars(module).get(_SERIALIZE) if module is not None else None
            if serialize is not None and not hasattr(serialize, "__wrapped__"):
                setattr(module, _SERIALIZE, self._telling(serialize))

    def _telling(self, serialize: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(serialize)
        def serialized(tensors: Any, filename: Any, *arguments: Any, **keywords: Any) -> Any:
            self._tell(filename)
            return serialize(tensors, filename, *arguments, **keywords)

        serialized.__wrapped__ = serialize
        return serialized

    def _tell(self, file: Any) -> None:
        if isinstance(file, str | os.PathLike):
            self._note(os.path.abspath(os.fspath(file)))
