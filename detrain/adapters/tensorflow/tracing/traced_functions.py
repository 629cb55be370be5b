"""Compiled functions: each gets a key as it is made, and each trace is a unit of building, with its call. Two traces
have the same form if they compute the same.

A resumed run can make methods again that the loop has compiled, from the arguments of their compilation.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import FrameType, MethodType
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import gradients_util

from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.summary_writers import Summaries
from detrain.adapters.tensorflow.tracing.call_arguments import Calls
from detrain.adapters.tensorflow.tracing.model_functions import MethodOwners, function_label, path_in_keras
from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import digest_array
from detrain.base.in_place import in_place_of
from detrain.python.inspect.frames import has_user_code, is_user_file, names_of, outwards

_OF_DATASET: Final = "_tf_data_function"
"""The attribute of functions that tf.data makes around the program's functions."""
_FIRST_VALUES: Final = "Function._initialize_uninitialized_variables.<locals>.initialize_variables"
"""TensorFlow's function that gives a function's new variables their initial values: it skips restored variables."""
_FOR_INSTANCE: Final = "class_method_to_instance_method"
"""TensorFlow's function that compiles a method for one object."""

_WIDTH: Final = 3
"""The number of bytes of each op's digest in an outline: they serve only for the words of a refusal."""
_MOST_SHOWN: Final = 8
"""The most elements of a constant that is shown."""
_MOST_OPERATIONS: Final = 1 << 12
"""The most ops of a graph that has an outline: a checkpoint stores one for each function."""


class TracedFunctions:
    """The watcher of functions as they are made and traced."""

    def __init__(
        self,
        births: Births,
        building: Building,
        calls: Calls,
        owners: MethodOwners,
        summaries: Summaries,
        is_in_loop: Callable[[], bool],
    ) -> None:
        self._births, self._building, self._calls, self._owners = births, building, calls, owners
        self._summaries, self._is_in_loop = summaries, is_in_loop
        self._options: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any]]] = weakref.WeakKeyDictionary()
        """The arguments with which the loop has compiled methods."""
        self._of_datasets: set[str] = set()
        """Keys of the functions that tf.data sets call."""
        self.holds_metrics = False
        """True if a compiled function has captured a metric that the loop has made."""
        self._watch_functions()

    def parts(self, value: Any) -> list[object] | None:
        """Return [key, Python function, options] of a method that the loop has compiled; None for anything else."""
        found = self._options.get(value) if isinstance(value, polymorphic_function.Function) else None
        options = None if found is None else self._calls.describe_call(*found)
        return None if options is None else [self._births.key(value), value.python_function, options]

    def remake(self, key: str, method: Any, options: str) -> object:
        """Return the compiled method with a key; one that the loop had made is made again."""
        found = self._births.find(key)
        if found is not None:
            return found
        args, kwargs = self._calls.recall_arguments(json.loads(options))
        with self._births.naming(key):
            return polymorphic_function.Function(method, *args, **kwargs)

    def _watch_functions(self) -> None:
        births, building = self._births, self._building
        original = polymorphic_function.Function.__init__
        original_graph = func_graph.FuncGraph.__init__
        original_trace = func_graph.func_graph_from_py_func

        @in_place_of(polymorphic_function.Function, "__init__")
        def function_made(function: Any, python_function: Any, *args: Any, **kwargs: Any) -> None:
            frame = sys._getframe(1)
            label = function_label(python_function, frame)
            if frame.f_code.co_name == _FOR_INSTANCE:
                around = names_of(frame)
                held = self._owners.note(function, around["instance"])
                known = self._owners.known_by(f"{births.key(around['original_function'])}/{label}", held)
            else:
                known = None
            with births.naming(known) if known else contextlib.nullcontext():
                key = births.register(function, label, frame)
            if _OF_DATASET in (kwargs.get("experimental_attributes") or ()):
                self._of_datasets.add(key)
                weakref.finalize(function, self._of_datasets.discard, key).atexit = False
            original(function, python_function, *args, **kwargs)
            if self._is_in_loop() and (isinstance(python_function, MethodType) or has_user_code(python_function)):
                self._options[function] = (args, kwargs)

        @in_place_of(func_graph.FuncGraph, "__init__")
        def graph_made(graph: Any, *args: Any, **kwargs: Any) -> None:
            original_graph(graph, *args, **kwargs)
            graph.detrain_function = births.owner(sys._getframe(1), polymorphic_function.Function)

        @in_place_of(func_graph, "func_graph_from_py_func")
        def traced(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            owner = births.owner(frame, polymorphic_function.Function)
            name = getattr(kwargs.get("python_func", args[1] if len(args) > 1 else None), "__qualname__", "")
            # A set's function is traced when the set is made, at the same moment in each run, and anew for each set.
            is_of_dataset = owner in self._of_datasets
            function = births.find(owner)  # none if the graph belongs to no function of the program
            held = self._owners.of(function)
            with building.not_noted() if is_of_dataset else self._unit_of_trace(frame, owner, held):
                if building.is_again and (made := kwargs.get("func_graph")) is not None:
                    made.seed = building.seed[0]()  # the graph was made just before
                graph = original_trace(*args, **kwargs)
                self._note_captured(graph)
                if owner and name != _FIRST_VALUES:
                    building.note_form(form(graph, self._keys_of_handles()))
                return graph

    def _unit_of_trace(self, frame: FrameType, owner: str, held: dict[str, str]) -> AbstractContextManager[None]:
        """Return a trace's unit of building. Gradients of functions are traced when calls need them, in any order."""
        building = self._building
        if owner and not building.is_inside and _is_of_gradient(frame):
            of = digest_bytes((self._describe_trace(frame, owner) or "").encode())
            return building.unit(f"{owner} gradient {of}", lambda: None)
        return building.unit(owner, lambda: self._describe_trace(frame, owner), held)

    def _keys_of_handles(self) -> dict[int, str]:
        """Return the keys of living variables, by the identity of their handles."""
        return {id(variable.handle): key for key, variable in self._births.living(tf.Variable) if hasattr(variable, "handle")}

    def _note_captured(self, graph: Any) -> None:
        """Note whether a function has captured a writer, or a metric that the loop has made: it will go on using it."""
        handles = {id(outer) for outer, _inner in graph.captures if outer.dtype is tf.resource}
        self._summaries.note_captured(handles)
        for key, variable in self._births.living(tf.Variable) if handles and not self.holds_metrics else ():
            if self._births.is_of_loop(variable) and id(getattr(variable, "handle", None)) in handles:
                self.holds_metrics |= hasattr(self._births.find(key.rpartition("/")[0]), "update_state")

    def _describe_trace(self, frame: FrameType | None, owner: str) -> str | None:
        """Return the call that a function is being traced for, from the call's frame on the stack."""
        for each in outwards(frame):
            code = each.f_code
            if code.co_varnames[:1] == ("self",) and code.co_name in ("_call", "_get_concrete_function_garbage_collected"):
                values = names_of(each)
                if self._births.key(values.get("self")) == owner:
                    given = values.get("args", ()), values.get("kwds", values.get("kwargs", {}))
                    return self._calls.describe_call(*given, path_in_keras())
        return None


def _is_of_gradient(frame: FrameType | None) -> bool:
    """Return whether TensorFlow is about to trace the gradient of a function or loop inside a recorded function."""
    return any(each.f_code is gradients_util._GradientsHelper.__code__ for each in outwards(frame))


class GraphForm(NamedTuple):
    """The form of a graph: its digest, an outline to tell where another one differs, and its ops with digests."""

    digest: str
    outline: str
    operations: list[tuple[Any, bytes]]

    def difference(self, outline: str) -> str:
        """Return, in words, the first op that a graph with another outline lacked; empty if it is not known."""
        known = base64.b64decode(outline)
        before = {known[start : start + _WIDTH] for start in range(0, len(known), _WIDTH)}
        new = [operation for operation, digest in self.operations if _brief(digest) not in before]
        if new and before:
            return f"then there was not {_described(new[0])}"
        return f"then there were {len(known) // _WIDTH} operations, now there are {len(self.operations)}" if before else ""


def form(graph: Any, keys: Mapping[int, str]) -> GraphForm:
    """Return the form of a graph: the kinds of ops, their attributes of numbers and types, constants, and the wiring.

    A trace takes just these from Python. `keys` has the keys of variables by the identity of their handles, since it
    counts which variable is read. Names and texts are left out (the handle of an iterator belongs to one process), and
    so is the order in which independent ops were made.
    """
    found: dict[int, bytes] = {}
    captured = {id(inner.op): outer for outer, inner in graph.captures}
    others = itertools.count()
    for each in graph.get_operations():
        parts = [each.type.encode()]
        if id(each) in captured:
            outer = captured[id(each)]
            known = keys.get(id(outer)) if outer.dtype is tf.resource else None
            parts.append((digest_array(outer.numpy()) if _is_constant(outer) else known or f"capture {outer.dtype.name}").encode())
        elif each.type == "Placeholder":
            parts.append(str(next(others)).encode())
        else:
            parts += [name.encode() + value for name, value in _numbers(each)]
            parts += [found.get(id(tensor.op), b"") + str(tensor.value_index).encode() for tensor in each.inputs]
            parts += sorted(found.get(id(before), b"") for before in each.control_inputs)
        found[id(each)] = digest_bytes(b"|".join(parts)).encode()
    brief = [_brief(each) for each in found.values()] if len(found) <= _MOST_OPERATIONS else []
    outline = base64.b64encode(b"".join(brief)).decode()
    return GraphForm(
        digest_bytes(b"".join(sorted(found.values()))), outline, [(each, found[id(each)]) for each in graph.get_operations()]
    )


def _brief(digest: bytes) -> bytes:
    return bytes.fromhex(digest[: 2 * _WIDTH].decode())


def _described(operation: Any) -> str:
    """Return an op in words: its kind, its constants, and the line of the program that made it."""
    inputs = [value for value in map(_value, operation.inputs) if value is not None]
    what = f"{operation.type} of {', '.join(inputs)}" if inputs else _value(operation.outputs[0]) if operation.outputs else None
    frames = [frame for frame in operation.traceback or () if is_user_file(frame.filename)]
    at = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{what or operation.type}{at} ({operation.name})"


def _value(tensor: Any) -> str | None:
    """Return the value of a small constant, in words; None for anything else."""
    value = tf.get_static_value(tensor) if tensor.op.type == "Const" else None
    return None if value is None or value.size > _MOST_SHOWN else f"the constant {value.tolist()!r}"


def _numbers(operation: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the attributes of an op that decide its computation, as bytes: no names of functions, texts or shapes."""
    for name, value in sorted(operation.node_def.attr.items()):
        kind = value.WhichOneof("value")
        is_text = kind == "tensor" and value.tensor.dtype == tf.string.as_datatype_enum
        if name.startswith("_") or is_text or kind in (None, "s", "func", "shape", "placeholder"):
            continue
        if kind == "list" and (value.list.s or value.list.func or value.list.shape):
            continue
        yield name, value.SerializeToString(deterministic=True)


def _is_constant(tensor: Any) -> bool:
    return isinstance(tensor, EagerTensor) and tensor.dtype not in (tf.string, tf.resource, tf.variant)
