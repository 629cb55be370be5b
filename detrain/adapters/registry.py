"""The adapters, and the modules whose import calls for them.

An adapter is imported when the program imports its framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from detrain.adapters.api import Adapter, Settings
from detrain.python.process.random_streams import Streams

ADAPTERS: Final = {
    "tensorflow": ("detrain.adapters.tensorflow.adapter", "TensorFlow"),
    "torch": ("detrain.adapters.torch.adapter", "Torch"),
    "jax": ("detrain.adapters.jax.adapter", "Jax"),
}
"""Module and class of each adapter, by the top-level module whose import brings the framework in."""

FOLLOWED: Final = (
    "keras",
    "tf_keras",
    "optax",
    "equinox",
    "torch._dynamo",
    "torch._inductor.codecache",
    "safetensors.torch",
    "safetensors.numpy",
)
"""Other modules of whose import the adapters are told."""


def make(name: str, settings: Settings, streams: Streams) -> Adapter:
    """Return the adapter of a framework, which has just been imported. Raises FrameworkUnsupported."""
    module, made_by = ADAPTERS[name]
    adapter: Adapter = getattr(import_module(module), made_by)(settings, streams)
    return adapter
