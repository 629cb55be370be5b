"""The places where weights are updated, under any name: an optimizer is applied, or variables are set by their
gradients.

In eager code an update is a call of Python. A compiled function is Python only while it is traced: the graph that an
update was traced into is marked (with the graphs around it), and every later run of it from eager code is an update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_training_ops, resource_variable_ops
from tensorflow.python.training import optimizer as graph_optimizer

from detrain.adapters.tensorflow.random.graph_kinds import functions_of
from detrain.base.in_place import in_place_of

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")
_RULES = "resource(_sparse)?_apply_(?!.*fallback).*"
"""Ops that are whole update rules: optimizers of Keras 2 (`legacy`) and of other libraries call them."""
_FEW: Final = 8
"""The number of gradients by plain tensors after which a program without updates counts as training such tensors. A few
may be taken only to look at something (a saliency map, a check of gradients) before any training."""


class TensorFlowUpdates:
    """The watcher of updates. It calls `on_update(number)` at each update made from eager code. The number tells one
    updater (optimizer, function) from another.

    `on_assign(number)` is called where a trainable variable is set for no known reason: by a program that trains
    without gradients, or one that restores weights. `on_write(handle)` is called where any variable is set outside of
    compiled functions.

    A program may have no variables: its weights are plain tensors, which each step replaces by new ones. There each
    gradient is an update, from the eighth on, unless there is a trainable variable.
    """

    def __init__(
        self,
        on_update: Callable[[int], None],
        on_assign: Callable[[int], None],
        on_write: Callable[[object], None],
        variables: Callable[[], Iterable[Any]],
    ) -> None:
        """Watch updates from now on. `variables` returns the living variables."""
        self._on_update = on_update
        self._on_write = on_write
        self._on_assign = on_assign
        self._variables = variables
        self._depth = 0
        self._by_gradient: set[int] = set()
        """Handles of the variables by which a gradient was taken, until they are set or an optimizer is applied."""
        self._has_variables = False
        """True if some weights are variables: one that is trainable, was updated, or has a gradient."""
        self._by_tensors = 0
        self._watch(graph_optimizer.Optimizer, "apply_gradients")
        self._watch_functions()
        self._watch_gradients()
        self._watch_rules()

    def on_keras(self) -> None:
        """Watch Keras's optimizers too: Keras has been imported."""
        import keras

        self._watch(keras.optimizers.Optimizer, "apply")

    def _note(self, what: object) -> None:
        """Note an update, in a graph that is being traced or in eager code."""
        self._has_variables = True
        graph: Any = ops.get_default_graph() if not context.executing_eagerly() else None
        if graph is None:
            self._on_update(id(what))
        while graph is not None:
            graph.detrain_updates = True
            graph = getattr(graph, "outer_graph", None)

    def _note_gradients(self, handles: set[int], *, adds: bool = False) -> None:
        """Note that gradients by these variables are taken: now in eager code, or at each run of the graph that is
        being traced.

        `adds`: variables of earlier gradients keep waiting for their update, too.
        """
        self._by_gradient = handles | (self._by_gradient if adds else set())
        graph: Any = ops.get_default_graph() if not context.executing_eagerly() else None
        while graph is not None:
            graph.detrain_gradients = handles | getattr(graph, "detrain_gradients", set())
            graph = getattr(graph, "outer_graph", None)

    def _note_gradients_by_tensors(self, what: object) -> None:
        """Note gradients by no variable: taken now in eager code, or at each run of the graph that is being traced."""
        if self._has_variables:
            return
        graph: Any = ops.get_default_graph() if not context.executing_eagerly() else None
        if graph is None:
            self._by_tensors += 1
            self._has_variables = self._by_tensors <= _FEW and any(each.trainable for each in self._variables())
            if self._by_tensors >= _FEW and not self._has_variables:
                self._on_update(id(what))
        while graph is not None:
            graph.detrain_by_tensors = True
            graph = getattr(graph, "outer_graph", None)

    def _note_assignment(self, what: object) -> None:
        if context.executing_eagerly():
            self._on_assign(id(what))
        else:
            ops.get_default_graph().detrain_assigns = True

    def _watch(self, cls: Any, name: str) -> None:
        original = getattr(cls, name)

        @in_place_of(cls, name)
        def applied(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(optimizer, *args, **kwargs)
            self._note(optimizer)
            self._by_gradient.clear()
            self._depth += 1
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                self._depth -= 1

    def _watch_functions(self) -> None:
        original = concrete_function.ConcreteFunction._call_flat

        @in_place_of(concrete_function.ConcreteFunction, "_call_flat")
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(function, *args, **kwargs)
            graph = function._func_graph
            if getattr(graph, "detrain_updates", False):
                self._note(graph)
            elif getattr(graph, "detrain_assigns", False):
                self._note_assignment(graph)
            elif getattr(graph, "detrain_gradients", None):  # its caller sets the variables with the returned gradients
                self._note_gradients(graph.detrain_gradients, adds=True)  # several may be called before any is applied
            elif hasattr(graph, "detrain_by_tensors"):
                self._note_gradients_by_tensors(graph)
            return result

    def _watch_gradients(self) -> None:
        original_gradient = tf.GradientTape.gradient

        @in_place_of(tf.GradientTape, "gradient")
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            handles = {id(handle) for source in tf.nest.flatten(sources) if (handle := _handle(source)) is not None}
            self._note_gradients(handles)
            self._has_variables |= bool(handles)
            if not handles:
                self._note_gradients_by_tensors(original_gradient)
            return original_gradient(tape, target, sources, *args, **kwargs)

        for cls in (resource_variable_ops.BaseResourceVariable, resource_variable_ops.ResourceVariable):
            for name in _ASSIGNMENTS:
                if name in vars(cls):  # the second class has copies of the first one's methods
                    self._watch_assignment(cls, name)

    def _watch_rules(self) -> None:
        for module, name, rule in functions_of(_RULES, gen_training_ops):
            setattr(module, name, self._applying(rule))

    def _applying(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def applied(*args: Any, **kwargs: Any) -> Any:
            of = args[0] if args else kwargs["var"]
            self._on_write(of)
            if not self._depth:
                self._note(of)
            return rule(*args, **kwargs)

        return applied

    def _watch_assignment(self, cls: Any, name: str) -> None:
        original = getattr(cls, name)

        @in_place_of(cls, name)
        def assigned(variable: Any, *args: Any, **kwargs: Any) -> Any:
            self._on_write(variable.handle)
            if not self._depth and id(variable.handle) in self._by_gradient and not _is_initializing():
                self._by_gradient.discard(id(variable.handle))
                self._note(variable.handle)
            elif not self._depth and variable.trainable and not _is_initializing():
                self._note_assignment(variable.handle)
            return original(variable, *args, **kwargs)


def _is_initializing() -> bool:
    """Return whether TensorFlow is now setting the initial values of a function's variables, in a graph of its own."""
    return not context.executing_eagerly() and getattr(ops.get_default_graph(), "name", "") == "initialize_variables"


def _handle(source: Any) -> Any:
    """Return the handle of a variable of TensorFlow or Keras; None for any other object."""
    return getattr(source if isinstance(source, tf.Variable) else getattr(source, "_value", None), "handle", None)
