"""PyTorch's side of an experiment: the watched ops of the steps that need it, the fault, the losses."""

from __future__ import annotations

from typing import Final

from detrain.adapters.instruments import Also, Instruments, TakesInstruments
from detrain.adapters.keras_objects import KerasSeries
from detrain.adapters.torch.compiler.history import History
from detrain.adapters.torch.faults import first_accesses
from detrain.adapters.torch.faults.compiled import Compiled
from detrain.adapters.torch.faults.injector import Injectors
from detrain.adapters.torch.faults.op_operands import dtype_of
from detrain.adapters.torch.faults.ranges import Ranges
from detrain.adapters.torch.faults.step_loss import TorchLosses
from detrain.adapters.torch.faults.step_place import StepCalls
from detrain.adapters.torch.faults.watched_ops import WatchedOps
from detrain.adapters.torch.named_objects import NamedObjects
from detrain.adapters.torch.updates import ForwardPasses
from detrain.base.digest import Array
from detrain.faults.experiment import Bounds, Firing, Injection
from detrain.faults.sites import MEMORY, Site, memory_site


class TorchInstruments(Instruments):
    """See `detrain.adapters.instruments.Instruments`."""

    is_part_of_steps: Final = False

    def __init__(self, experiment: TakesInstruments, history: History, passes: ForwardPasses | None = None) -> None:
        """`passes`: the forward passes, in an experiment on inference."""
        plans = experiment.plans
        self._passes = passes
        self._injectors = Injectors()
        self._names = NamedObjects()
        self._ops = WatchedOps(StepCalls(self._names), self._injectors, is_inference=passes is not None)
        self.series = KerasSeries("torch", TorchLosses(experiment.ends_with))
        self._compiled = Compiled(self._ops, self._injectors, history, passes)
        bounds = next((plan.ranges for plan in plans if plan.ranges), {})
        is_heard = bounds or plans[0].notes_ranges
        self._ranges = Ranges(bounds, self._ops.take) if is_heard else None
        if plans[0].is_profile:
            first_accesses.watch()
        self._has_digests = plans[0].digests_at is not None
        if plans[0].injection is not None:
            self.select(plans[0].injection, plans[0].also)

    def on_import(self, module: str) -> None:
        """Hook the compiler once it is imported."""
        self._compiled.on_import(module)

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Select one of the injections, and the others of the same step."""
        self._injectors.select(injection, also)

    def begin_step(self) -> None:
        """Watch the ops of the step that begins."""
        self._begin()
        self._ops.begin(notes=True, digests=self._has_digests)

    def arm(self, occurrence: int) -> None:
        """Hit the site."""
        self._begin()
        self._injectors.arm(occurrence)
        self._ops.begin()

    def disarm(self) -> None:
        """Stop hitting the site."""
        self._injectors.disarm()
        self._ops.end()
        self._compiled.check()
        self._injectors.check()

    def _begin(self) -> None:
        self._ops.end()
        self._compiled.check()
        self._compiled.begin()
        self._names.look()

    def is_placed(self) -> bool:
        """Return True: the site can always be hit, as nothing is put in before an op runs."""
        return True

    def firing(self) -> Firing | None:
        """Return the record of the fault's hits so far."""
        return self._injectors.firing()

    def is_unarmed_equal(self) -> bool | None:
        """Return whether a compiled graph that was hit gives the same bits with a site and no fault; None for eager
        ops: there the steps before the fault tell.
        """
        return self._compiled.is_unarmed_equal

    def memory(self) -> list[Site]:
        """Return parameters, buffers and the state of optimizers, as sites in memory."""
        self._names.look()
        return [
            memory_site(name, kind, tuple(tensor.shape), dtype, self._ops.access(tensor))
            for name, (kind, tensor) in self._names.variables().items()
            if (dtype := dtype_of(tensor))
        ]

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of one of the variables in memory."""
        self._names.look()
        found = self._names.variables().get(injection.site.removeprefix(MEMORY))
        return self._injectors.first.firing() if found is not None and self._injectors.first.strike(injection, found[1]) else None

    def outputs(self) -> list[Array]:
        """Return the outputs of forward passes without gradients since the last call."""
        return [] if self._passes is None else self._passes.outputs()

    def ranges(self) -> dict[str, Bounds]:
        """Return the bounds of each module's outputs so far."""
        return self._ranges.noted() if self._ranges is not None else {}

    def digests(self) -> list[tuple[str, int, int]]:
        """Return the digests of the outputs of each op."""
        self._ops.end()
        self._compiled.check()
        return self._ops.digests()

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended."""
        self._ops.end()
        self._compiled.check()
        return self._ops.sites()
