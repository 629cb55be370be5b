"""Variables and ops that detrain puts into a program's graphs, unseen by the program, its checkpoints and its
gradients.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

HIDDEN: Final = "detrain_hidden"
"""Names of such variables begin so; the adapter does not take them for the program's."""
_GRADIENT: Final = "DetrainLinked"


def hidden_variable(value: Any, dtype: Any, shape: Any = None) -> Any:
    """Return a new variable of detrain's own;

    `shape` may leave dimensions open. May be called while a function is traced.
    """
    # Not tf.Variable: that asks the creators of the functions being traced, and a function that is traced again
    # refuses.
    with tf.init_scope():
        return ResourceVariable(value, dtype=dtype, trainable=False, name=HIDDEN, shape=shape)


def linked(original: Any, replacement: Any) -> Any:
    """Return a tensor with the replacement's value, through which gradients flow to the original as if it were that
    one.

    For gradients that are taken by walking through a graph (those of nested functions): tapes do not look at these ops.
    """
    with original.graph.gradient_override_map({"IdentityN": _GRADIENT}):
        result = array_ops.identity_n([replacement, original])[0]
    result.set_shape(original.shape)
    return result


@ops.RegisterGradient(_GRADIENT)  # type: ignore[untyped-decorator]
def _pass_to_original(_op: Any, grad: Any, _unused: Any) -> list[Any]:
    return [None, grad]
