"""Python's functions for ops of TensorFlow, wherever a program may find them: in their modules, and in `tf.raw_ops`.

For who puts another function in their place, or looks at their calls.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def replace_op(module: Any, name: str, op: Callable[..., Any]) -> None:
    """Put an op in the place of a module's, and of those of `tf.raw_ops` that are made from it."""
    for holder, held_as, held in functions_of(re.escape(name), module):

        @functools.wraps(held)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        setattr(holder, held_as, replaced)


def functions_of(pattern: str, module: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions for ops in a module, and those made from them in `tf.raw_ops`,
    also of its APIs for older programs.

    The pattern is that of their names in the module. Each comes with where it is, and its name there.
    """
    modules = (module, tf.raw_ops, tf.compat.v1.raw_ops, tf.compat.v2.raw_ops)
    found = [(each, name, op) for each in modules for name, op in vars(each).items()]
    return [each for each in found if re.fullmatch(pattern, getattr(each[2], "__name__", ""))]
