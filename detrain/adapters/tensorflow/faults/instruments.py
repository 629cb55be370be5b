"""TensorFlow's side of an experiment: sites, the injector and the series, made together before the program uses
TensorFlow.
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from detrain.adapters.instruments import Also, Instruments, TakesInstruments
from detrain.adapters.tensorflow.faults.eager_sites import EagerInjector
from detrain.adapters.tensorflow.faults.graph_sites import Replacer, Sites
from detrain.adapters.tensorflow.faults.injector import ArmedSwitch, TensorFlowInjectionPoint
from detrain.adapters.tensorflow.faults.memory import VariableMemory
from detrain.adapters.tensorflow.faults.step_metrics import StepMetrics
from detrain.faults.experiment import Firing, Injection, refuse_several
from detrain.faults.sites import Site


class TensorFlowInstruments(Instruments):
    """See `detrain.adapters.instruments.Instruments`."""

    is_part_of_steps: Final = True

    def __init__(self, experiment: TakesInstruments, memory: VariableMemory) -> None:
        plans = experiment.plans
        self._memory = memory
        injections = [plan.injection for plan in plans if plan.injection is not None and not plan.injection.is_in_memory]
        groups: dict[tuple[object, ...], list[Injection]] = {}
        for injection in injections:
            groups.setdefault(injection.place, []).append(injection)
        gate = ArmedSwitch()
        self._injectors = [
            EagerInjector(group) if EagerInjector.is_of(group[0]) else TensorFlowInjectionPoint(group, gate)
            for group in groups.values()
        ]
        self._injector: TensorFlowInjectionPoint | EagerInjector | None = None
        first = plans[0]
        if first.digests_at is None:  # no optimizer: with sites or without, a graph is computed as traced
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        self._sites = Sites(self._points, counts=first.is_profile, has_digests=first.digests_at is not None)
        if plans[0].injection is not None:
            self.select(plans[0].injection)
        self.series = StepMetrics(self._sites, experiment)

    def _points(self, name: str, replica: int) -> list[Replacer]:
        return [
            injector
            for injector in self._injectors
            if isinstance(injector, TensorFlowInjectionPoint) and injector.fits(name, replica)
        ]

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Choose the injection to apply from now on. Raises FaultInvalid for several at once."""
        refuse_several(1 + len(also))
        self._memory.forget()
        self._injector = next((injector for injector in self._injectors if injector.takes(injection)), None)
        if self._injector is not None:
            self._injector.select(injection)
        self._sites.eager.injector = self._injector if isinstance(self._injector, EagerInjector) else None

    def on_keras(self) -> None:
        """Watch Keras's layers, optimizers and metrics: Keras has been imported."""
        self._sites.on_keras()
        self.series.on_keras()

    def on_keras_2(self) -> None:
        """Watch the layers, optimizers and metrics of Keras 2 (`tf_keras`), which has been imported."""
        self._sites.on_keras_2()
        self.series.on_keras_2()

    def begin_step(self) -> None:
        """Begin to count executions and to note sites."""
        self._sites.begin_step()

    def arm(self, occurrence: int) -> None:
        """Have the site hit when it runs next, or so many runs later."""
        if self._injector is not None:
            self._injector.arm(occurrence)
            self._sites.eager.begin()  # last, so that it does not see the assignments of `arm`

    def disarm(self) -> None:
        """Have the site hit no more."""
        if self._injector is not None:
            self._sites.eager.end()
            self._injector.disarm()

    def is_placed(self) -> bool:
        """Return whether the site has been traced."""
        return self._injector is not None and self._injector.is_placed

    def firing(self) -> Firing | None:
        """Return the record of the fault's hits so far; None if there were none."""
        return self._injector.firing() if self._injector is not None else None

    def memory(self) -> list[Site]:
        """Return the living variables, as sites in memory."""
        return self._memory.sites(self._sites.accesses())

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of a variable in memory; None if none has its name, shape and dtype."""
        return self._memory.strike(injection)

    def digests(self) -> list[tuple[str, int, int]]:
        """Return the digests of each op's last outputs."""
        return self._sites.digests()

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended."""
        return self._sites.sites()
