"""The place of a thread in a step: the layer that runs, and the stage (forward, backward or update).

Recording tapes and gradients under way are nested: the innermost of them decides the stage. Ops made while a gradient
is taken belong to the backward pass, also gradients of the program's own and sums of several gradients; under a tape
that is opened in there (`recompute_grad`) ops go forward again. Outside of all of them an op belongs to the update if
its inputs come from the backward pass.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tensorflow.python.distribute import distribute_lib, mirrored_run
from tensorflow.python.eager import backprop, imperative_grad
from tensorflow.python.ops import gradients_util

from detrain.adapters.tensorflow.faults.live_outputs import called_graphs
from detrain.base.in_place import in_place_of
from detrain.faults.sites import Stage

_GRADIENT: Final = object()
"""The mark of a gradient that is being taken."""
_LOOPS: Final = ("While", "StatelessWhile")
_BRANCHES: Final = ("If", "StatelessIf", "Case", "StatelessCase")
_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")


@dataclass  # without slots: those would be one for all threads
class ThreadStage(threading.local):
    """The state of a thread: its layers, gradients, optimizers and tapes."""

    layers: list[str] = field(default_factory=list)
    gradients: list[tuple[str, Any]] = field(default_factory=list)
    """For each gradient function that is running: the layer of its op, and the records of the ops that it makes."""
    optimizers: list[str] = field(default_factory=list)
    own: int = 0
    """A number above 0 while detrain makes ops of its own."""
    marks: list[object] = field(default_factory=list)
    """The recording tapes and the gradients under way, the innermost last."""

    @contextlib.contextmanager
    def apart(self, *, is_so: bool = True) -> Iterator[None]:
        """Mark ops that are made inside as detrain's own, if `is_so`."""
        self.own += is_so
        try:
            yield
        finally:
            self.own -= is_so

    def watch(self) -> None:
        """Have TensorFlow's tapes and gradients noted, in all threads."""
        marks = self
        push, pop = backprop.GradientTape._push_tape, backprop.GradientTape._pop_tape

        @in_place_of(backprop.GradientTape, "_push_tape")
        def pushed(tape: Any) -> None:
            push(tape)
            marks.marks.append(tape)

        @in_place_of(backprop.GradientTape, "_pop_tape")
        def popped(tape: Any) -> None:
            pop(tape)
            for place in reversed(range(len(marks.marks))):
                if marks.marks[place] is tape:
                    del marks.marks[place]
                    break

        for cls in (distribute_lib.ReplicaContextBase, mirrored_run._MirroredReplicaContext):
            cls._merge_call = self._merging(cls._merge_call)
        imperative_grad.imperative_grad = self._taking(imperative_grad.imperative_grad)
        gradients_util._GradientsHelper = self._taking(gradients_util._GradientsHelper)

    def _merging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Have the thread that does the replicas' common work (updates, too) take over their layer and stage."""

        @functools.wraps(original)
        def merged(replica: Any, function: Callable[..., Any], *args: Any) -> Any:
            there = {name: list(value) for name, value in vars(self).items() if isinstance(value, list)}

            def called(*given: Any, **named: Any) -> Any:
                here = vars(self).copy()
                vars(self).update(there)
                try:
                    return function(*given, **named)
                finally:
                    vars(self).update(here)

            return original(replica, called, *args)

        return merged

    def _taking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def taken(*args: Any, **kwargs: Any) -> Any:
            with self._mark():
                return original(*args, **kwargs)

        return taken

    @contextlib.contextmanager
    def _mark(self) -> Iterator[None]:
        depth = len(self.marks)
        self.marks.append(_GRADIENT)
        try:
            yield
        finally:
            del self.marks[depth:]

    def is_inner(self, tape: Any) -> bool:
        """Return whether a tape's gradient is a part of another one, being taken or recorded by another tape."""
        return any(mark is not tape for mark in self.marks)

    def stage(self, scope: str, is_late: Callable[[], bool]) -> tuple[Stage, str]:
        """Return the stage and the layer of an op that is being made; `scope` stands for the layer if none runs.

        `is_late` returns whether an input of the op comes from the backward pass.
        """
        innermost = self.marks[-1] if self.marks else None
        if innermost is _GRADIENT:
            return "backward", (self.gradients[-1][0] if self.gradients else "") or scope
        if self.optimizers:
            return "optimizer", self.optimizers[-1]
        layer = "/".join(self.layers) or scope
        return ("optimizer" if innermost is None and is_late() else "forward"), layer


class BackwardTensors:
    """The tensors of graphs that come from the backward pass.

    `stage_of` returns the stage of an op, None if it is not known.
    """

    def __init__(self, stage_of: Callable[[Any], Stage | None]) -> None:
        self._stage_of = stage_of
        self._known: dict[tuple[int, str, int], tuple[Any, bool]] = {}
        """The answers, with their tensors: these keep a graph alive, so that no other graph gets its id."""

    def __call__(self, tensor: Any) -> bool:
        """Return whether a tensor depends on a gradient."""
        passed: dict[tuple[int, str, int], tuple[Any, bool]] = {}
        waiting = [tensor]
        while waiting:
            each = waiting.pop()
            key = (id(each.graph), each.op.name, each.value_index)
            stage = self._stage_of(each.op)
            if key in passed or stage == "forward" or (stage is None and self._known.get(key, (each, True))[1] is False):
                continue
            if stage is not None or key in self._known:
                self._known[id(tensor.graph), tensor.op.name, tensor.value_index] = tensor, True
                return True
            passed[key] = each, False
            waiting.extend(self._sources(each))
        self._known.update(passed)
        return False

    @staticmethod
    def _sources(tensor: Any) -> list[Any]:
        """Return the tensors that a tensor is made of, outside and inside of the function that returns it."""
        op, graph, index = tensor.op, tensor.graph, tensor.value_index
        if op.type == "Placeholder":
            outside = [outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor]
            return [outer for outer in outside if hasattr(outer, "op")]
        if op.type in (*_LOOPS, *_BRANCHES, *_CALLS):
            inside = [inner.outputs[index] for inner in called_graphs(graph, op) if index < len(inner.outputs)]
            if op.type in _LOOPS:
                return [*inside, op.inputs[index]]
            return inside if op.type in _BRANCHES else [*inside, *op.inputs]
        return list(op.inputs)


def watch_layers(here: ThreadStage, cls: Any) -> None:
    """Have the running layer of Keras noted, for the names of sites."""
    original_call = cls.__call__

    @in_place_of(cls, "__call__")
    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        here.layers.append(str(layer.name))
        try:
            return original_call(layer, *args, **kwargs)
        finally:
            here.layers.pop()


def watch_optimizer(here: ThreadStage, cls: Any, method: str) -> None:
    """Have the optimizer noted that makes an update."""
    original = vars(cls).get(method)
    if original is None:  # it is inherited
        return

    @functools.wraps(original)
    def applied(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        here.optimizers.append(str(getattr(optimizer, "name", None) or optimizer._name))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            here.optimizers.pop()

    setattr(cls, method, applied)
