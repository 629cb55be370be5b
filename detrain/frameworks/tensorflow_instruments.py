"""TensorFlow's side of an experiment: sites, the injector and the series, made together before the program uses TensorFlow."""

from __future__ import annotations

from detrain.faults.experiment import Experiment, Firing
from detrain.faults.sites import Site
from detrain.frameworks.tensorflow_injector import Injector
from detrain.frameworks.tensorflow_series import Series
from detrain.frameworks.tensorflow_sites import Point, Sites


class Instruments:
    """See `detrain.runtime.experiment.Instruments`."""

    def __init__(self, plan: Experiment) -> None:
        self._injector = Injector(plan.injection) if plan.injection is not None else None
        self._sites = Sites(self._point, counts=plan.is_profile, has_digests=plan.digests_at is not None)
        self._series = Series(self._sites)

    def _point(self, name: str, replica: int) -> Point | None:
        return self._injector if self._injector is not None and self._injector.fits(name, replica) else None

    def on_keras(self) -> None:
        """Keras is there now."""
        self._sites.on_keras()
        self._series.on_keras()

    def begin_step(self) -> None:
        """Count executions from here on."""
        self._sites.begin_step()

    def arm(self, occurrence: int) -> None:
        """Have the site hit."""
        if self._injector is not None:
            self._injector.arm(occurrence)

    def disarm(self) -> None:
        """Have it hit no more."""
        if self._injector is not None:
            self._injector.disarm()

    def is_placed(self) -> bool:
        """Return whether the site has been traced."""
        return self._injector is not None and self._injector.is_placed

    def firing(self) -> Firing | None:
        """Return what the fault has done so far."""
        return self._injector.firing() if self._injector is not None else None

    def series(self) -> dict[str, float]:
        """Return the loss and metrics of what has run since the last call."""
        return self._series.read()

    def digests(self) -> list[tuple[str, int, int]]:
        """Return what each op has given last, as digests."""
        return self._sites.digests()

    def sites(self) -> list[Site]:
        """Return the sites of the step that has ended."""
        return self._sites.sites()
