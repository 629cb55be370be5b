"""Steps of TensorFlow in a process of their own, with faults placed in them, for tests of single sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.eager_sites import EagerInjector
from detrain.adapters.tensorflow.faults.graph_sites import Replacer, Sites
from detrain.adapters.tensorflow.faults.injector import TensorFlowInjectionPoint
from detrain.faults.experiment import Injection
from detrain.faults.sites import Site
from detrain.python.process.random_streams import Streams

Injector = TensorFlowInjectionPoint | EagerInjector


def without_function(name: str) -> str:
    """Return a site's name without its function's name: a step is made anew for each case."""
    return name.partition("/")[2]


class Bench:
    """The adapter of this process, the sites of steps, and the faults placed at them. `key` returns the part of a
    site's name that counts.
    """

    def __init__(self, key: Callable[[str], str] = without_function, *, has_digests: bool = False) -> None:
        TensorFlow(Settings(0, 1), Streams())
        self._key = key
        self._placed: dict[str, list[TensorFlowInjectionPoint]] = {}
        self.sites = Sites(self._points, counts=True, has_digests=has_digests)

    def _points(self, name: str, _replica: int) -> list[Replacer]:
        return [*self._placed.get(self._key(name), [])]

    def clear(self) -> None:
        """Remove all placed faults."""
        self._placed.clear()
        self.sites.eager.injector = None

    def listed(self, step: Callable[..., Any], *given: Any) -> list[Site]:
        """Return the sites of a step without placed faults."""
        self.clear()
        self.sites.begin_step()
        step(*given)
        return self.sites.sites()

    def place(self, site: Site, *injections: Injection, how: str = "graph") -> Injector:
        """Return an injector that, when armed, puts the last of these injections into functions made from now on, or
        into eager code.
        """
        injector: Injector
        if how == "eager":
            injector = self.sites.eager.injector = EagerInjector(list(injections))
        else:
            injector = TensorFlowInjectionPoint(list(injections))
            self._placed.setdefault(self._key(site.name), []).append(injector)
        injector.select(injections[-1])
        return injector

    def run(self, step: Callable[..., Any], *given: Any) -> Any:
        """Run a step with the armed fault, if there is one."""
        self.sites.eager.begin()
        results = step(*given)
        self.sites.eager.end()
        return results

    def hit(self, injector: Injector, step: Callable[..., Any], *given: Any, occurrence: int = 0) -> Any:
        """Run a step with a fault."""
        injector.arm(occurrence)
        results = self.run(step, *given)
        injector.disarm()
        return results


def fired(injector: Injector) -> int:
    """Return how often a fault has fired."""
    firing = injector.firing()
    return firing.count if firing is not None else 0
