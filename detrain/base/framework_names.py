"""What is known of frameworks by names alone, for code that imports none: an entry for each framework that has an
adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FrameworkNames:
    """Names of one framework, and of what belongs to it."""

    modules: frozenset[str]
    """Top-level modules: an object of a class from there is the adapter's business."""
    python_loaders: frozenset[str] = frozenset()
    """Those of them whose iterators are Python with a state of its own, which the adapter does not bring back."""
    computing: frozenset[str] = frozenset()
    """Modules whose functions do nothing but compute."""
    readers: tuple[str, ...] = ()
    """Modules with files of the framework's own, which have a position."""
    built_lazily: tuple[tuple[str, str], ...] = ()
    """(module, attribute): says that an object's variables exist, so in a resumed process when they do."""
    logs: tuple[str, ...] = ()
    """Locals in which a training loop of the framework keeps the metrics of an epoch."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide about bits."""
    settings: tuple[str, ...] = ()
    """Environment variables that do."""


_OPS: Final = ("math", "gen_math", "nn", "gen_nn", "array", "gen_array", "clip", "linalg")
TENSORFLOW: Final = FrameworkNames(
    modules=frozenset({"tensorflow", "keras", "tf_keras"}),
    python_loaders=frozenset({"keras", "tf_keras"}),  # over pictures and texts
    computing=frozenset(
        {
            *(f"tensorflow.python.ops.{name}_ops" for name in _OPS),
            *("tensorflow.python.ops.nn_impl", "tensorflow.python.ops.image_ops_impl"),
            *(f"keras.src.{name}" for name in ("activations.activations", "losses.losses")),
            *(f"keras.src.ops.{name}" for name in ("core", "image", "linalg", "math", "nn", "numpy")),
            *(f"keras.src.metrics.{name}_metrics" for name in ("accuracy", "regression")),
            *(f"tf_keras.src.{name}" for name in ("activations", "losses")),
            *(f"tf_keras.src.metrics.{name}_metrics" for name in ("accuracy", "regression")),
        }
    ),
    readers=("tensorflow.python.lib.io",),
    built_lazily=(("keras", "built"),),  # of a layer; a `tf.Module` means what it likes
    logs=("epoch_logs", "logs"),
    packages=("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "keras", "tf_keras"),
    settings=("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "TF_XLA_FLAGS", "KERAS_BACKEND"),
)

KNOWN: Final = (TENSORFLOW,)
MODULES: Final = frozenset[str]().union(*(each.modules for each in KNOWN))
"""Top-level modules of all of them."""
