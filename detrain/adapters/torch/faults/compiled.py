"""Faults in programs that call `torch.compile`: compiled graphs are watched and hit, or refused if they can have none.

While ops are watched one by one, PyTorch runs no compiled code, or other code. So the watch is off in a compiled call;
each graph that runs there, or in the backward pass, is walked through op by op before it runs, and hit.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import wraps
from types import FrameType
from typing import Any, Final

import torch

from detrain.adapters.torch.compiler.history import DYNAMO, GRAPHS, History, has_compiled
from detrain.adapters.torch.faults.graph_walk import GraphCall, GraphWalk
from detrain.adapters.torch.faults.graphs import CompiledGraph, Passes, copied, is_once_only, streams_kept
from detrain.adapters.torch.faults.injector import Injectors
from detrain.adapters.torch.faults.step_place import OpPlace
from detrain.adapters.torch.faults.watched_ops import WatchedOps
from detrain.adapters.torch.updates import ForwardPasses
from detrain.base.errors import FaultInvalid
from detrain.base.in_place import in_place_of

_OFF: Final = "TORCHDYNAMO_DISABLE"
"""Environment variable: set to 1, `torch.compile` returns its argument as it is."""
_CALL: Final = "compile_wrapper"
"""PyTorch's function that stands for a compiled function."""


class Compiled:
    """Follows compiled calls and graphs, from the import of the compiler on."""

    def __init__(self, ops: WatchedOps, injectors: Injectors, history: History, passes: ForwardPasses | None) -> None:
        """`passes`: the forward passes, in an experiment on inference."""
        self._ops, self._injectors, self._history, self._passes = ops, injectors, history, passes
        self._call: FrameType | None = None
        """The frame of the outermost compiled call that runs."""
        self._owner: Any = None
        """The module or optimizer that has the called method."""
        self._passes_before = 0
        self._has_graph = self._has_module = False
        """Whether the call has run a graph, and whether one with ops of a module."""
        self._graphs = 0
        self._root: weakref.ref[Any] | None = None
        """The module that has the method which is compiled."""
        self._obstacle = ""
        """Why no faults can be put into the compiled code; empty if they can."""
        self._calls: Counter[tuple[int, Hashable]] = Counter()
        self._forward: dict[Hashable, GraphCall] = {}
        """The calls of forward graphs in this step, by the number of autograd's function."""
        self.is_unarmed_equal: bool | None = None
        """Whether the graphs that were hit give the same bits with a site and no fault; None: none was hit."""

    def on_import(self, module: str) -> None:
        """Hook the compiler's modules once they are imported."""
        if module == DYNAMO and self._history.is_followed:
            self._hear_of_calls()
        elif module == GRAPHS and self._history.is_followed:
            self._hear_of_graphs()

    def begin(self) -> None:
        """Note that a watched step begins."""
        self._calls.clear()
        self._forward.clear()
        self.is_unarmed_equal = None

    def check(self) -> None:
        """Raise FaultInvalid if the program has compiled code into which no faults can be put."""
        dynamo = sys.modules.get(f"{DYNAMO}.compiled_autograd")
        why = self._obstacle
        if not self._history.is_followed and has_compiled():
            why = f"that is known of PyTorch 2.13 to 2.15 alone, and this is {torch.__version__}"
        elif dynamo is not None and dynamo.compiled_autograd_enabled:
            why = "its backward pass is traced, too (compiled autograd)"
        if why:
            raise FaultInvalid(
                f"the program uses torch.compile in a way in which no fault can be put into its step: {why}",
                f"set {_OFF}=1 in the environment, for replays too: all steps are eager then, with bits of their own",
            )

    # Compiled calls.

    def _hear_of_calls(self) -> None:
        frames: Any = sys.modules[f"{DYNAMO}.eval_frame"]
        graphs = sys.modules[f"{DYNAMO}.output_graph"].OutputGraph
        first, last, compile_graph = frames.set_eval_frame, frames._maybe_set_eval_frame, graphs.call_user_compiler

        def set_eval_frame(callback: Any) -> Any:
            """Note the start of a compiled call, which calls this first, before it looks at PyTorch's modes."""
            frame = sys._getframe(1)
            if self._call is None and frame.f_code.co_name == _CALL and self._ops.is_of_thread():
                self._enter(frame)
            return first(callback)

        def set_eval_frame_back(callback: Any) -> Any:
            """Note the end of a compiled call, which calls this last."""
            result = last(callback)
            if sys._getframe(1) is self._call and not callable(callback):
                self._leave()
            return result

        @in_place_of(graphs, "call_user_compiler")
        def call_user_compiler(this: Any, *args: Any, **kwargs: Any) -> Any:
            root = this.local_scope.get("self")
            self._root = weakref.ref(root) if isinstance(root, torch.nn.Module) else None
            before = self._graphs
            result = compile_graph(this, *args, **kwargs)
            if self._graphs == before:
                name = getattr(this.compiler_fn, "__name__", "") or type(this.compiler_fn).__name__
                self._obstacle = self._obstacle or f"its backend ({name}) is given no graph of ops by AOTAutograd"
            return result

        module = frames.OptimizedModule
        call = module.__call__

        @in_place_of(module, "__call__")
        def call_module(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._call is None and self._ops.is_on:  # else PyTorch warns of detrain's hooks
                with self._ops.where.unheard():
                    return call(this, *args, **kwargs)
            return call(this, *args, **kwargs)

        frames.set_eval_frame, frames._maybe_set_eval_frame = set_eval_frame, set_eval_frame_back

    def _enter(self, frame: FrameType) -> None:
        self._call, self._owner = frame, getattr(frame.f_locals.get("fn"), "__self__", None)
        self._has_graph, self._has_module = False, False
        self._passes_before = self._passes.count if self._passes is not None else 0
        if self._ops.is_on:
            self._ops.enter_compiled(self._owner)

    def _leave(self) -> None:
        if self._ops.is_on:
            self._ops.leave_compiled(self._owner)
        (frame, owner), self._call, self._owner = (self._call, self._owner), None, None
        if frame is None or "result" not in frame.f_locals:  # it has failed
            return
        if self._passes is None or torch.is_grad_enabled():
            return
        is_heard = self._passes.count > self._passes_before
        is_module = isinstance(owner, torch.nn.Module)
        is_model = is_module or self._passes.is_inside
        if is_model and not self._has_graph and self._ops.is_on:
            self._obstacle = (
                self._obstacle
                or f"nothing of {type(owner).__qualname__ if is_module else 'a model'} is compiled, so it runs unwatched"
            )
        if self._has_module and not is_model:
            self._obstacle = self._obstacle or "a model is compiled as a part of a function, whose scores nobody knows"
        if not is_heard and (is_module or self._obstacle):
            self._passes.note(frame.f_locals["result"], id(frame.f_locals.get("fn")))

    # Graphs.

    def _hear_of_graphs(self) -> None:
        module: Any = sys.modules[GRAPHS]
        original = module.aot_stage2_compile

        @in_place_of(module, "aot_stage2_compile")
        def compile_(state: Any, capture: Any, partition: Any, forward: Any, backward: Any = None, inference: Any = None) -> Any:
            passes = Passes(self._root)
            self._graphs += 1
            return original(
                state,
                capture,
                partition,
                self._heard(forward, passes, has_gradients=True),
                self._heard(backward or forward, passes, has_gradients=True, is_backward=True),
                self._heard(inference or forward, passes),
            )

        # A hit in AOTAutograd's own cache would come without its graph; the cache of kernels is another one.
        module.should_use_local_autograd_cache = module.should_use_remote_autograd_cache = lambda: False

    def _heard(
        self, compiler: Callable[..., Any], passes: Passes, *, has_gradients: bool = False, is_backward: bool = False
    ) -> Callable[..., Any]:
        """Return a compiler that notes each graph that it compiles, and each call of the compiled graph."""

        @wraps(compiler)
        def compile_graph(module: Any, inputs: Any) -> Any:
            self._obstacle = self._obstacle or _obstacle(module, inputs)
            again = self._compiler(compiler, list(inputs))
            pristine = copied(module)
            with self._unwatched():
                plain = _boxed(compiler(module, inputs))
            graph = CompiledGraph(pristine, again, plain, passes, is_backward, has_gradients)
            has_module = any(node.meta.get("nn_module_stack") for node in pristine.graph.nodes)

            def run(args: list[Any]) -> Any:
                self._has_graph, self._has_module = True, self._has_module or has_module
                if passes.parameters is None:
                    passes.note(args)
                is_seen = self._ops.is_on and not self._obstacle and self._ops.is_of_thread()
                return self._run(graph, args) if is_seen else plain(args)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph

    def _compiler(self, compiler: Callable[..., Any], inputs: list[Any]) -> Callable[[Any], Callable[[list[Any]], Any]]:
        """Return a function that compiles a graph later in the way in which it would be compiled now."""
        guards = sys.modules["torch._guards"]
        tracing, compiling = guards.TracingContext.try_get(), guards.CompileContext.try_get()

        def compile_(module: Any) -> Callable[[list[Any]], Any]:
            as_then = guards.tracing(tracing), guards.compile_context(compiling), torch._C._DisableAutocast()
            sizes = getattr(tracing and tracing.fake_mode, "shape_env", None)
            before = len(sizes.guards) if sizes is not None else 0
            with self._history.apart(), as_then[0], as_then[1], as_then[2], torch.no_grad():
                found = _boxed(compiler(module, inputs))
            if sizes is not None and len(sizes.guards) > before:  # no code would check the new guards
                raise FaultInvalid("with the site it is for other sizes", "have it compiled for one size (dynamic=False)")
            return found

        return compile_

    def _run(self, graph: CompiledGraph, args: list[Any]) -> Any:
        """Run a graph in a watched step."""
        with self._unwatched(), torch.no_grad():
            call = self._call_of(graph, args)
            walk, faulty = GraphWalk(call, self._ops, self._injectors), None
            try:
                with streams_kept(args):
                    walk.go(args)
                if walk.points:
                    faulty = graph.copy_for(args, walk.points)
            except Exception as error:  # any op, and any backend
                self._obstacle = f"a graph cannot be gone through, or compiled with a site: {type(error).__name__}: {error}"
                return graph.plain(args)
            taken = list(args)
            if faulty is None:
                outputs = graph.plain(args)
            else:
                outputs = faulty.run(args, walk.armed)
                self.is_unarmed_equal = faulty.is_equal and self.is_unarmed_equal is not False
            self._ops.end_graph(call.place, taken, outputs)
            return outputs

    def _call_of(self, graph: CompiledGraph, args: list[Any]) -> GraphCall:
        place = self._ops.where.place([each for each in args if isinstance(each, torch.Tensor)])
        turn = self._calls[id(graph), place.call]
        self._calls[id(graph), place.call] += 1
        if graph.is_backward:
            node = torch._C._current_autograd_node()
            forward = self._forward.get(node._sequence_nr() if node is not None else None)
            place = OpPlace("backward", place.layer, place.call)
            if forward is None:
                return GraphCall(graph, place, [], turn, id(graph))
            return GraphCall(graph, place, forward.renamed, turn, forward.number, forward.given, forward.names)
        renamed = self._ops.where.renamed((first(), args[at]) for at, first in (graph.passes.parameters or {}).items())
        number = torch.autograd._get_sequence_nr() - 1
        if not graph.has_gradients:
            return GraphCall(graph, place, renamed, turn, number)
        call = self._forward[number] = GraphCall(graph, OpPlace("forward", place.layer, place.call), renamed, turn, number)
        return call

    def _unwatched(self) -> AbstractContextManager[None]:
        """Inside, no ops are watched."""
        return _Unwatched(self._ops if self._ops.is_on and self._call is None else None)


class _Unwatched:
    def __init__(self, ops: WatchedOps | None) -> None:
        self._ops = ops

    def __enter__(self) -> None:
        if self._ops is not None:
            self._ops.enter_compiled(None)

    def __exit__(self, *_exception: object) -> None:
        if self._ops is not None:
            self._ops.leave_compiled(None)


def _boxed(function: Any) -> Callable[[list[Any]], Any]:
    """Return a backend's compiled function as a function of one list of arguments."""
    if getattr(function, "_boxed_call", False):
        return function  # type: ignore[no-any-return]
    return lambda args: function(*args)


def _obstacle(module: Any, inputs: Any) -> str:
    name = is_once_only(module)
    if name:
        return f"a graph has an op that is not to run twice ({name})"
    config = sys.modules.get("torch._inductor.config")
    has_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in inputs)
    if has_gpu and config is not None and config.triton.cudagraphs:
        return "its kernels are replayed together, as CUDA graphs (reduce-overhead)"
    return ""
