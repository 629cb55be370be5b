"""Graphs that a backend of `torch.compile` has compiled, and copies of them with faults.

AOTAutograd hands a backend a graph of ops for the forward pass and one for the backward pass, or one without gradients.
detrain puts a fault into a copy of such a graph by ops of its own, after or before the op that is hit: they read the
fault as they run. So arming, another plan, or another place in the same copy needs no compilation. The tensors that one
pass hands to the other stay the same.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec
import torch
from torch.fx import GraphModule, Node

from detrain.adapters.shared_copies import copies
from detrain.adapters.torch.faults.injector import Injector, bits_copied
from detrain.adapters.torch.faults.op_operands import COPY, name_of

OWN: Final = "detrain"
"""The namespace of detrain's ops."""
_FAULTY: Final = "faulty(Tensor value, int run) -> Tensor"
_MIXED: Final = "mixed(Tensor golden, Tensor faulty, int run) -> Tensor"


class Point(msgspec.Struct, frozen=True):
    """An op of a graph that is a run of a site."""

    node: str
    taken_in: str
    """The node with the value that is hit only where this op takes it in; empty: an operand or output is hit."""
    output: int
    """The number of the op's output that sees the fault."""
    operand: int | None
    """The place of the argument that is hit; None: the output is hit."""
    is_limited: bool
    """Whether only some elements of the output see a fault of an operand."""


class Passes(msgspec.Struct, eq=False):
    """Data that the forward and the backward graph of one function share."""

    root: weakref.ref[Any] | None
    """The module that has the compiled method; None: a function was compiled."""
    parameters: dict[int, weakref.ref[Any]] | None = None
    """The parameters in the first call, for which the graphs were made, by place. Other calls may have others."""

    def note(self, args: Sequence[Any]) -> None:
        """Note the parameters among the arguments of the first call."""
        self.parameters = {place: weakref.ref(each) for place, each in enumerate(args) if isinstance(each, torch.nn.Parameter)}


class CompiledGraph(msgspec.Struct, eq=False):
    """A graph as the backend got it, and the backend's compiled function."""

    module: GraphModule
    compile: Callable[[GraphModule], Callable[[list[Any]], Any]]
    """Compiles another graph in the way in which this one was compiled."""
    plain: Callable[[list[Any]], Any]
    """The program's own compiled function: takes a list of arguments, which it may empty."""
    passes: Passes
    is_backward: bool
    has_gradients: bool
    _variants: dict[tuple[Point, ...], Callable[[list[Any]], Any]] = {}
    _together: list[Point] | None = None

    @property
    def placeholders(self) -> list[Node]:
        """The graph's inputs, in the order of the arguments."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def written(self) -> frozenset[int]:
        """The places of the arguments that the graph writes."""
        into = {node.args[0] for node in self.module.graph.nodes if is_writing(node)}
        return frozenset(place for place, node in enumerate(self.placeholders) if node in into)

    def copy_for(self, args: list[Any], points: Sequence[Point]) -> GraphCopy:
        """Return a copy with faults at points that can be armed, for the arguments of a call."""
        plain = [bits_copied(each) for each in args]
        with streams_kept(args):
            own = self.plain(list(plain))
        if self._together is None:
            self._together = _together(self.module)
        is_equal = False
        for what in copies(self._together, points):
            try:
                run = self._with_points(what)
            except Exception:  # of any backend
                if what == tuple(points):
                    raise
                continue
            unarmed = [bits_copied(each) for each in args]
            with streams_kept(args), armed_in({}):
                found = run(list(unarmed))
            is_equal = all(map(_is_same, found, own)) and all(_is_same(unarmed[place], plain[place]) for place in self.written)
            if is_equal:
                break
        return GraphCopy(run, [what.index(point) for point in points], own, is_equal)

    def _with_points(self, what: tuple[Point, ...]) -> Callable[[list[Any]], Any]:
        if what not in self._variants:
            _define()
            self._variants[what] = self.compile(_with_ops(copied(self.module), what))
        return self._variants[what]


class GraphCopy(msgspec.Struct):
    """A copy of a graph with faults in it, for the arguments of one call."""

    _run: Callable[[list[Any]], Any]
    _places: list[int]
    """The numbers of the wanted points, among all points in the copy."""
    _own: Any
    """The outputs of the program's own graph."""
    is_equal: bool
    """Whether the copy gives the same outputs, to the bit, with no point armed."""

    def run(self, args: list[Any], armed: Mapping[int, Injector]) -> Any:
        """Run the copy with faults at the armed ones of the wanted points; return its outputs."""
        with armed_in({self._places[number]: injector for number, injector in armed.items()}):
            outputs = self._run(args)
        return type(outputs)(_as_laid_out(each, like) for each, like in zip(outputs, self._own, strict=True))


def _together(module: GraphModule) -> list[Point]:
    """Return the points of a graph that can share a copy: floating-point outputs of ops that give new tensors."""
    found: list[Point] = []
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or any(each.alias_info for each in node.target._schema.returns):
            continue
        value = node.meta.get("val")
        outputs = enumerate(value) if isinstance(value, tuple | list) else [(0, value)]
        found += [
            Point(node.name, "", number, None, is_limited=False)
            for number, each in outputs
            if isinstance(each, torch.Tensor) and each.dtype.is_floating_point and _outputs(node, number)
        ]
    return found


def copied(module: GraphModule) -> GraphModule:
    """Return a copy of a graph, even while its compiler computes with tensors without values."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return copy.deepcopy(module)


def is_writing(node: Node) -> bool:
    """Return whether a node writes into its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def _with_ops(module: GraphModule, points: Sequence[Point]) -> GraphModule:
    graph, ops = module.graph, getattr(torch.ops, OWN)
    nodes = {node.name: node for node in graph.nodes}

    def added(target: Any, args: tuple[Any, ...], like: Node) -> Node:
        new = graph.call_function(target, args)
        new.meta = dict(like.meta)
        return new

    # First the points at inputs of ops: after a point at an output, the value has another node.
    for run, point in sorted(enumerate(points), key=lambda each: not each[1].taken_in):
        node = nodes[point.node]
        if point.taken_in:
            value = nodes[point.taken_in]
            with graph.inserting_before(node):
                node.replace_input_with(value, added(ops.faulty.default, (value, run), value))
            continue
        for target in _outputs(node, point.output):
            with graph.inserting_before(target.next):
                if point.operand is None:
                    new = added(ops.faulty.default, (target, run), target)
                else:
                    operand = node.args[point.operand]
                    faulty = added(ops.faulty.default, (operand, run), operand)
                    again = graph.node_copy(node, lambda each: each)
                    again.args = tuple(faulty if place == point.operand else each for place, each in enumerate(node.args))
                    new = again if target is node else added(operator.getitem, (again, target.args[1]), target)
                    if point.is_limited:
                        new = added(ops.mixed.default, (target, new, run), target)
            target.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    graph.lint()
    module.recompile()
    return module


def _outputs(node: Node, number: int) -> list[Node]:
    """Return the nodes that have the value of one output of an op."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [node] if not number else []
    return [user for user in node.users if user.target is operator.getitem and user.args[1] == number]


# The code of detrain's ops.

_running: list[Mapping[int, Injector]] = []
"""For the graph that runs: the injectors of the points that are hit, by the points' numbers."""


@contextmanager
def armed_in(armed: Mapping[int, Injector]) -> Iterator[None]:
    """Inside, the points with these numbers are hit in the graph that runs."""
    _running.append(armed)
    try:
        yield
    finally:
        _running.pop()


def _define() -> None:
    """Define detrain's ops, once in a process."""
    global _library  # noqa: PLW0603 - PyTorch forgets ops whose library is gone
    if _library is not None:
        return
    library = torch.library.Library(OWN, "FRAGMENT")
    for schema, does, gives in ((_FAULTY, _faulty, _like), (_MIXED, _mixed, _like)):
        name = schema.partition("(")[0]
        library.define(schema, tags=(torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag))
        library.impl(name, does, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OWN}::{name}", gives, lib=library)
    _library = library


_library: Any = None


def _faulty(value: Any, run: int) -> Any:
    injector = _running[-1].get(run)
    return injector.faulty(value) if injector is not None else bits_copied(value)


def _mixed(golden: Any, faulty: Any, run: int) -> Any:
    injector = _running[-1].get(run)
    return injector.mixed(golden, faulty) if injector is not None else bits_copied(golden)


def _like(value: Any, *_others: Any) -> Any:
    return torch.empty_like(value)


# Two runs of one graph.


def streams_kept(args: Iterable[Any]) -> AbstractContextManager[None]:
    """Inside, code may draw random numbers; the streams are put back afterwards."""
    devices = {each.device.index for each in args if isinstance(each, torch.Tensor) and each.is_cuda}
    kept: AbstractContextManager[None] = torch.random.fork_rng(sorted(devices))
    return kept


def _is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other) if type(one) is type(other) else False
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    mine, its = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(mine, its))


def _as_laid_out(value: Any, like: Any) -> Any:
    """Return a tensor with the strides of another one: the code that takes it in was compiled for these."""
    if not isinstance(value, torch.Tensor) or value.stride() == like.stride():
        return value
    found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return found.copy_(value)


_ONCE_ONLY: Final = ("_c10d_functional", "c10d", "with_effects")
"""Beginnings of names of ops with effects on other processes, or outside of the process."""


def is_once_only(module: GraphModule) -> str:
    """Return the name of an op of a graph that must not run more often than the program runs it; else an empty text."""
    for node in module.graph.nodes:
        is_higher = isinstance(node.target, torch._ops.HigherOrderOperator)
        name = name_of(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.name() if is_higher else ""
        if name.startswith(_ONCE_ONLY) or (is_writing(node) and name != COPY):
            return str(name)
    return ""
