"""Refusals of ways to train that detrain cannot see into (their state, loops or order): it refuses them as they begin.

They are the graph mode of TensorFlow 1, `fit` of Keras 2, and strategies over several processes, each of which would
come back to its own cut. The program's own loops over layers and optimizers of Keras 2 (`tf_keras`) are supported.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as sessions
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.framework import ops

from detrain.base.errors import FrameworkUnsupported
from detrain.base.in_place import in_place_of

_OR_BARE = "or run the program with --bare: no checkpoints"
_WORKERS = ("chief", "worker")


def refuse_unseen(probes: Any) -> None:
    """Refuse `disable_eager_execution`, sessions on graphs with weights (the session holds these), and training in
    several processes.
    """
    _refuse(
        probes,
        sessions.BaseSession,
        "run",
        lambda session, *_args, **_kwargs: _weights_of(session),
        f"train in eager mode or with tf.function, {_OR_BARE}",
    )
    _refuse(
        probes,
        CollectiveAllReduceExtended,
        "_initialize_multi_worker",
        lambda _extended, resolver: _several(resolver.cluster_spec()),
        f"train in one process (MirroredStrategy), {_OR_BARE}",
    )
    _refuse(
        probes,
        tf.distribute.ParameterServerStrategy,
        "__init__",
        lambda *_args, **_kwargs: "ParameterServerStrategy updates weights from other processes, in any order",
        f"train in one process (MirroredStrategy), {_OR_BARE}",
    )
    for owner in (ops, tf.compat.v1):
        _refuse(
            probes,
            owner,
            "disable_eager_execution",
            lambda: "the program disables eager execution: the weights of TensorFlow 1's graph mode lie in sessions, out of sight",
            f"train in eager mode or with tf.function, {_OR_BARE}",
        )


def refuse_fit(probes: Any) -> None:
    """Refuse `fit` of Keras 2, which has just been imported."""
    import tf_keras

    _refuse(
        probes,
        tf_keras.Model,
        "fit",
        lambda *_args, **_kwargs: "Model.fit of Keras 2 (tf_keras) is not supported, only loops of a program's own over its models",
        f"use Keras 3 (TF_USE_LEGACY_KERAS not set), {_OR_BARE}",
    )


def _refuse(probes: Any, owner: Any, name: str, why: Any, todo: str) -> None:
    """Have a call of a function end the run if `why`, given the call's arguments, returns a reason."""
    original = getattr(owner, name)

    @in_place_of(owner, name)
    def checked(*args: Any, **kwargs: Any) -> Any:
        reason = why(*args, **kwargs)
        if reason:
            probes.fail(FrameworkUnsupported(reason, todo))
        return original(*args, **kwargs)


def _weights_of(session: Any) -> str:
    weights = session.graph.get_collection(ops.GraphKeys.TRAINABLE_VARIABLES)
    return f"a session of TensorFlow 1 holds weights ({weights[0].name}), out of sight" if weights else ""


def _several(cluster: Any) -> str:
    count = sum(cluster.num_tasks(job) for job in _WORKERS if job in cluster.jobs)
    return (
        f"the program is one of {count} processes that train together: each would come back to a cut of its own"
        if count > 1
        else ""
    )
