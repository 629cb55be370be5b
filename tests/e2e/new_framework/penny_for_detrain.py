"""All that detrain has to be told of the framework `penny`: its entry, and its adapter."""

from __future__ import annotations

import functools
from typing import Any

from detrain.base.framework_names import FrameworkNames

PENNY = FrameworkNames(
    modules=frozenset({"penny"}),
    name="Penny",
    imported="penny",
    adapter=("penny_for_detrain", "make"),
    versions=((1, 2), (1, 3)),
    open_modules=frozenset({"penny"}),
    captured="Penny's parameters that the program can reach, with their gradients",
    streams="Penny's stream",
    packages=("penny",),
)


def make(settings: Any, _streams: Any) -> Any:
    """Return the adapter. The program has imported Penny: before, nothing more of detrain may be imported."""
    import penny

    from detrain.adapters.api import Adapter, RandomStreams, TensorLeaves
    from detrain.python.process.random_streams import HeldGenerator

    class Streams(RandomStreams):
        def streams(self) -> dict[str, Any]:
            return {"penny": HeldGenerator(penny._stream)}

        def held_generator(self, value: object) -> None:
            return None

    class Penny(Adapter):
        name = "penny"
        leaves = type("Leaves", (TensorLeaves,), {})()
        random = Streams()

        def __init__(self) -> None:
            penny.seed(settings.seed)
            original = penny.Momentum.step

            @functools.wraps(original)
            def step(optimizer: Any) -> None:
                original(optimizer)
                settings.on_update(1)

            penny.Momentum.step = step

    return Penny()
