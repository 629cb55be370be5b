"""Ways to train of TensorFlow 1 and Keras 2 whose state or loops are out of sight: they are refused as they begin.

Loops of a program's own over layers and optimizers of Keras 2 (`tf_keras`) are like any others.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as sessions
from tensorflow.python.framework import ops

from detrain.errors import FrameworkUnsupported


def refuse_graph_mode(probes: Any) -> None:
    """Refuse `disable_eager_execution`, and sessions on graphs with weights: these live in the session."""
    run = sessions.BaseSession.run

    def disable_eager_execution() -> None:
        probes.fail(
            FrameworkUnsupported(
                "the program disables eager execution: the weights of TensorFlow 1's graph mode lie in sessions, out of sight",
                "train in eager mode or with tf.function, or run the program with --bare: no checkpoints",
            )
        )

    @functools.wraps(run)
    def checked_run(session: Any, *args: Any, **kwargs: Any) -> Any:
        weights = session.graph.get_collection(ops.GraphKeys.TRAINABLE_VARIABLES)
        if weights:
            probes.fail(
                FrameworkUnsupported(
                    f"a session of TensorFlow 1 holds weights ({weights[0].name}), out of sight",
                    "train in eager mode or with tf.function, or run the program with --bare: no checkpoints",
                )
            )
        return run(session, *args, **kwargs)

    sessions.BaseSession.run = checked_run
    ops.disable_eager_execution = tf.compat.v1.disable_eager_execution = disable_eager_execution


def refuse_fit(probes: Any) -> None:
    """Refuse the `fit` of Keras 2, which has just been imported."""
    import tf_keras

    fit = tf_keras.Model.fit

    @functools.wraps(fit)
    def refused(model: Any, *_args: Any, **_kwargs: Any) -> None:
        probes.fail(
            FrameworkUnsupported(
                "Model.fit of Keras 2 (tf_keras) is not supported, only loops of a program's own over its models",
                "use Keras 3 (TF_USE_LEGACY_KERAS not set), or run the program with --bare: no checkpoints",
            )
        )

    tf_keras.Model.fit = refused
