"""Sums of squares taken where a compiled step ends, so that a look at the variables that it wrote needs no separate
call.

In place of a function of the program, detrain calls one of its own, which calls the program's and then reads the
watched variables. The program's function stays as it was: it is not inlined and is optimized by itself, with the shapes
of variables known as in a separate call (without them, sums are put in another order). So its bits are those of a run
without a guard. After a step, the processor's caches hold nothing of the code that a call needs: a look from outside
takes 0.9 ms after a step of 110 ms; the sums themselves take 0.04 ms of that.

A function that writes variables is called in this way once it has been called twice. `note_written` is told of all
other writes; after one, the next look is one from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph

from detrain.base.in_place import in_place_of

_OWN: Final = "__detrain_"
_WRITES: Final = re.compile("Assign|ResourceApply|ResourceSparseApply|ResourceScatter|ResourceStridedSlice")
_COUNTED: Final = re.compile("Collective|Nccl")
"""Ops that depend on which call of their function they are in."""
_XLA: Final = "_XlaMustCompile"
_CALLS: Final = 2
_MOST_UNKNOWN: Final = 256
_numbers: Final = itertools.count()

Attr = attr_value_pb2.AttrValue
Resources = tuple[tuple[int, int, Any], ...]
"""The resources among a function's inputs: (index, `id`, the known shape and type) of each."""
Numbers = npt.NDArray[np.int64] | None
"""The numbers of some watched variables; None: all, in their order."""


class _Variable(msgspec.Struct, eq=False):
    """A watched variable: its number among them, and the data needed to read it."""

    number: int
    dtype: tf.DType
    device: str
    handle: Any = None


class _WritingFunction(msgspec.Struct, eq=False):
    """A function of the program that writes variables."""

    resources: Resources
    places: list[int]
    """The indices of the watched ones among the function's inputs."""
    handles: list[int]
    """The `id` of each watched input: a later call may pass other variables."""
    numbers: Numbers
    function: Any = None
    """detrain's function around it, or None if the program's must be called as it is."""
    copy: str = ""
    """The name of the copy of the program's function that detrain's function calls."""
    options: Any = None
    """The options of calls of detrain's function: no optimization, which would treat the program's function
    as a part of it."""
    sums: Any = None
    """The sums of the last call [variable]; None once they have been taken."""


class Inside:
    """The program's functions that are called through detrain's functions.

    `make` takes a variable and returns the one number that is looked at.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._watched: dict[int, _Variable] = {}
        """The watched variables, by the `id` of the handle."""
        self._steps: dict[bytes, _WritingFunction | None] = {}
        """The known functions by their names; None for a function that does not write watched variables."""
        self._unknown: dict[bytes, tuple[int, Resources]] = {}
        """Unknown functions: the number of calls, and the resources passed in the last one."""
        self._called: dict[bytes, _WritingFunction] = {}
        self._is_watching = False
        self.is_complete = False
        """True if nothing but these functions has written a watched variable since the last look."""

    def watch(self, variables: Mapping[str, Any]) -> None:
        """Watch these variables from now on."""
        if not self._is_watching:
            self._is_watching = True
            self._replace_calls()
        self._watched = {
            id(variable.handle): _Variable(number, variable.dtype, variable.handle.device)
            for number, variable in enumerate(variables.values())
        }
        runtime = context.context()
        for name, step in list(self._steps.items()):
            places, _handles, numbers = self._looked_at(step.resources) if step is not None else ([], [], None)
            if step is not None and places == step.places and runtime.has_function(name):
                step.numbers = numbers
            else:
                self._drop(name)
        self.forget()

    def note_written(self, handle: object) -> None:
        """Note a write to a variable by anything but such a function."""
        if id(handle) in self._watched:
            self.is_complete = False

    def forget(self) -> None:
        """Note that all variables have been written: the next look must be one from outside."""
        self._called.clear()
        self.is_complete = False

    def take(self) -> list[tuple[Numbers, Any]]:
        """Return, for each function called since the last look, the numbers of variables (in the order of `watch`) and
        a tensor of their sums.
        """
        found = [(step.numbers, step.sums) for step in self._called.values()]
        self._called.clear()
        self.is_complete = True
        if self._unknown:
            self._learn()
        return found

    def _learn(self) -> None:
        for name, (calls, resources) in list(self._unknown.items()):
            if calls >= _CALLS:
                del self._unknown[name]
                self._steps[name] = self._find(name, resources)
        if len(self._unknown) > _MOST_UNKNOWN:
            self._unknown.clear()

    def _replace_calls(self) -> None:
        original = context.Context.call_function

        @in_place_of(context.Context, "call_function")
        def call_function(runtime: Any, name: bytes, inputs: list[Any], count: int) -> Any:
            step = self._steps.get(name, ...)
            if step is None or name.startswith(_OWN.encode()):
                return original(runtime, name, inputs, count)
            if step is ...:
                self._note_unknown(name, inputs)
            if step is ... or step.function is None or [id(inputs[place]) for place in step.places] != step.handles:
                self.is_complete = False
                return original(runtime, name, inputs, count)
            try:
                with _options(runtime, step.options):
                    *outputs, step.sums = original(runtime, step.function.name, inputs, count + 1)
            except tf.errors.OpError as error:
                self.is_complete = False
                for own in (step.function.name.decode(), step.copy):
                    error._message = error.message.replace(own, name.decode())
                raise
            self._called[name] = step
            return outputs or None

    def _note_unknown(self, name: bytes, inputs: list[Any]) -> None:
        calls, _before = self._unknown.get(name, (0, ()))
        resources = [(place, id(each), each._handle_data) for place, each in enumerate(inputs) if each.dtype is tf.resource]
        self._unknown[name] = calls + 1, tuple(resources)

    def _looked_at(self, resources: Resources) -> tuple[list[int], list[int], Numbers]:
        """Return the indices, handles and numbers of the watched resources, in the order of `watch`."""
        found = sorted(
            (self._watched[handle].number, place, handle) for place, handle, _known in resources if handle in self._watched
        )
        numbers = [number for number, _place, _handle in found]
        is_all = numbers == list(range(len(self._watched)))
        places, handles = [place for _number, place, _handle in found], [handle for _number, _place, handle in found]
        return places, handles, None if is_all else np.array(numbers, np.int64)

    def _drop(self, name: bytes) -> None:
        step = self._steps.pop(name)
        self._called.pop(name, None)
        if step is not None and step.copy:
            step.function = None
            context.context().remove_function(step.copy)

    def _find(self, name: bytes, resources: Resources) -> _WritingFunction | None:
        """Return the record by which a program's function is called; None if it writes no watched variable."""
        runtime = context.context()
        places, handles, numbers = self._looked_at(resources)
        if not places or not runtime.has_function(name):
            return None
        ops = _ops_in(name.decode(), set())
        if not any(map(_WRITES.search, ops)):
            return None
        step = _WritingFunction(resources, places, handles, numbers)
        if not any(map(_COUNTED.search, ops)):
            step.function, step.copy = self._around(name.decode(), step)
            step.options = _without_optimizer(runtime.function_call_options)
        return step

    def _around(self, name: str, step: _WritingFunction) -> tuple[Any, str]:
        """Return a function that calls the one with this name and has one more output, and the name of the
        copy that it calls.
        """
        runtime = context.context()
        definition = runtime.get_function_def(name)
        is_compiled = _XLA in definition.attr and definition.attr[_XLA].b
        called = name
        if not is_compiled:  # XLA inlines nothing either, and would have to compile the copy once more
            copy = function_pb2.FunctionDef()
            copy.CopyFrom(definition)
            called = copy.signature.name = f"{_OWN}step_{next(_numbers)}"
            copy.attr["_noinline"].b = True
            for place, _handle, known in step.resources:
                # Shapes and types that an eager call tells the optimizer, and a call in a graph does not.
                if known is not None and known.is_set:
                    told = copy.arg_attr[place].attr
                    told["_handle_dtypes"].list.type.extend(each.dtype for each in known.shape_and_type)
                    told["_handle_shapes"].list.shape.extend(each.shape for each in known.shape_and_type)
            runtime.add_function_def(copy)
        options = runtime.function_call_options.as_attrs()
        outputs = [each.type for each in definition.signature.output_arg]
        with tf.init_scope():
            graph = func_graph.FuncGraph("detrain_around")
            with graph.as_default():
                graph.inputs = [tf.raw_ops.Placeholder(dtype=each.type) for each in definition.signature.input_arg]
                attributes = {
                    "Tin": Attr(list=Attr.ListValue(type=[each.type for each in definition.signature.input_arg])),
                    "Tout": Attr(list=Attr.ListValue(type=outputs)),
                    "f": Attr(func=attr_value_pb2.NameAttrList(name=called)),
                    "config_proto": Attr(s=options["config_proto"]),
                    "executor_type": Attr(s=b""),
                    **({_XLA: definition.attr[_XLA]} if is_compiled else {}),
                }
                call = graph.create_op("StatefulPartitionedCall", graph.inputs, outputs, attrs=attributes, name="step")
                with tf.control_dependencies([call]):
                    given = zip((graph.inputs[place] for place in step.places), step.handles, strict=True)
                    found = [self._look(self._watched[handle], resource) for resource, handle in given]
                    graph.outputs = [*call.outputs, tf.stack(found)]
            function = atomic_function.from_func_graph(f"{_OWN}around_{next(_numbers)}", graph, {})
        return function, "" if is_compiled else called

    def _look(self, variable: _Variable, handle: Any) -> Any:
        with tf.device(variable.device):
            return self._make(msgspec.structs.replace(variable, handle=handle))


@contextlib.contextmanager
def _options(runtime: Any, options: Any) -> Iterator[None]:
    """Call functions with these options while the context lasts."""
    before = runtime.function_call_options
    runtime.function_call_options = options
    try:
        yield
    finally:
        runtime.function_call_options = before


def _without_optimizer(options: Any) -> Any:
    """Return options with which a graph runs as it was traced; functions called in it bring options of their own."""
    config = config_pb2.ConfigProto.FromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(options.executor_type, config)


def _ops_in(name: str, seen: set[str]) -> set[str]:
    """Return the types of the ops in a function, and in functions that it calls."""
    runtime = context.context()
    found: set[str] = set()
    seen.add(name)
    for node in runtime.get_function_def(name).node_def:
        found.add(node.op)
        inner = [node.op, *(attr.func.name for attr in node.attr.values() if attr.HasField("func"))]
        inner += [each.name for attr in node.attr.values() for each in attr.list.func]
        for each in inner:
            if each and each not in seen and runtime.has_function(each):
                found |= _ops_in(each, seen)
    return found
