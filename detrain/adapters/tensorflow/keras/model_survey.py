"""The content of a Keras object: its parts by their paths in it, and all other content in words.

It serves to describe a model, and to compare a model that was made again with the first one. It changes no object.
"""

from __future__ import annotations

import collections
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from detrain.adapters.stable_names import Births
from detrain.base.byte_digests import digest_bytes
from detrain.python.inspect.names import own_attributes

_NO_STATE: Final = frozenset(
    {"_tracker", "_tracked", "_inbound_nodes", "_outbound_nodes", "_losses", "_loss_ids", "_losses_override", "_auto_config"}
    | {"_call_signature", "_called", "_jit_compile", "_nodes", "_nodes_by_depth", "build", "quantize", "_distribution_strategy"}
    | {"_distribute_strategy", "_build_shapes_dict", "_compile_config", "_compiled_trainable_state", "backend"}
    | {"_trainable_variables_indices", "_exclude_from_weight_decay_cache", "_arg_reducer", "_self_update_uid"}
    | {"train_function", "test_function", "predict_function", "stop_evaluating", "stop_predicting"}
    | {"_self_name_based_restores", "_self_saveable_object_factories"}
    | {f"_self_unconditional_{what}" for what in ("checkpoint_dependencies", "dependency_names", "deferred_dependencies")}
)
"""Attributes with bookkeeping of Keras and TensorFlow: about past calls, and copies of content of other attributes."""
_OF_CALLS: Final = frozenset({"Node", "KerasTensor", "SymbolicArguments", "Signature"})
_TEXTS: Final = (bool, int, float, str, bytes, re.Pattern, np.dtype, tf.DType, np.generic, tf.TensorShape)
_MOST_PARTS: Final = 1 << 16
WIDTH: Final = 6
"""The number of digits kept of each digest of other content: they serve only for the words of a refusal."""


class Survey(NamedTuple):
    """The content of an object."""

    parts: dict[str, Any]
    """The layers, variables and other parts with a name in the run, by path; first the object itself (at "")."""
    drawn: dict[str, tuple[Any, tuple[str, ...]]]
    """Objects given a seed or numbered name as they were made, and the attributes that hold it: settings lack it."""
    others: list[str]
    """The other content, in words."""


class Surveys:
    """Surveys of objects; `births` knows which of their parts have a name in the run."""

    def __init__(self, births: Births) -> None:
        import keras
        from keras.src.initializers.random_initializers import RandomInitializer

        self._births, self._keras, self._drawing = births, keras, RandomInitializer

    def of(self, root: Any) -> Survey:
        """Return an object's content, by the attributes and places in containers that lead to it, in their order."""
        survey = Survey({}, {}, [])
        first: dict[int, str] = {}
        held = []  # keeps the objects alive while their identities are compared
        waiting = collections.deque([("", root)])
        while waiting and len(first) < _MOST_PARTS:
            path, value = waiting.popleft()
            words = self._words(value)
            if words is not None:
                survey.others.append(f"{path} {words}")
                continue
            if id(value) in first:
                survey.others.append(f"{path} = {first[id(value)]}")
                continue
            first[id(value)] = path
            held.append(value)
            name = type(value).__name__
            if self.key(value) is not None:
                survey.parts[path] = value
            else:
                survey.others.append(f"{path} {name}")
            if isinstance(value, self._keras.Variable | tf.Variable):
                survey.others.append(f"{path} {value.dtype} {value.shape} {value.trainable}")
                continue
            if isinstance(value, self._drawing) and value._init_seed is None:
                survey.drawn[path] = value, ("seed",)
            elif isinstance(value, self._keras.random.SeedGenerator):
                survey.drawn[path] = value, ("name", "_initial_seed")
            is_trained = isinstance(value, self._keras.optimizers.Optimizer)
            if is_trained:
                survey.others.append(f"{path} trains {[self.key(each) for each in value._trainable_variables]}")
            waiting += [
                (f"{path}/{place}" if path else place, item)
                for place, item in _items(value)
                if item is not None and not (is_trained and place == "_trainable_variables")
            ]
        return survey

    def _words(self, value: Any) -> str | None:
        """Return a value in words; None for one that holds others, or has a name."""
        if isinstance(value, _TEXTS):
            return repr(value)
        if isinstance(value, np.ndarray | tf.Tensor) and not isinstance(value, tf.Variable):
            return "" if tf.is_symbolic_tensor(value) else digest_bytes(np.asarray(value).tobytes())
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type | types.ModuleType):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        name = type(value).__name__
        if isinstance(value, self._keras.dtype_policies.DTypePolicy):
            return f"{name} {value.name}"
        return name if name in _OF_CALLS or isinstance(value, set | frozenset) else None

    def key(self, value: Any) -> str | None:
        """Return the key of an object, or of the variable in it; None for one that has no name in the run."""
        return self._births.key(inner(value))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, object) of each object that a value holds."""
    if isinstance(value, Mapping):
        yield from sorted(((str(name), item) for name, item in value.items()), key=lambda each: each[0])
    elif isinstance(value, list | tuple):
        yield from ((str(number), item) for number, item in enumerate(value))
    else:
        own = own_attributes(value) or {}
        yield from ((name, own[name]) for name in sorted(own) if name not in _NO_STATE)


def digest(words: list[str]) -> str:
    """Return a digest of the other content of an object, given in words."""
    return digest_bytes("\n".join(words).encode())


def brief(words: str) -> str:
    """Return the digits that are kept of one piece of other content."""
    return digest_bytes(words.encode())[:WIDTH]


def optimizer_of(value: Any) -> Any:
    """Return the optimizer that a model was compiled with, or an optimizer itself."""
    return getattr(value, "optimizer", None) if hasattr(value, "layers") else value


def inner(value: Any) -> Any:
    """Return the TensorFlow variable in a variable of Keras; anything else as it is."""
    held = getattr(value, "_value", None)
    return held if isinstance(held, tf.Variable) else value
