"""One fixed order for ops in traced functions that TensorFlow leaves to timing, with deterministic ops or without.

- **Sums in Grappler.** Its memory optimizer replaces an `AddN` of three tensors and more by `AssignAdd`s to a temporary
  variable, which run as their inputs come, if it estimates that a function needs more than 0.8 of a device's memory:
  of 256 MB on a CPU (`grappler/optimizers/memory_optimizer.cc`, `SchedulingPass`). This part of it is turned off; its
  swapping is left on.
- **Sums in the kernel.** `AddN` begins with the first input whose buffer nobody else holds at that moment, and writes
  into this buffer (`kernels/aggregate_ops.cc`). `_Sums` settles which input that is. It treats trees of `AddV2` in the
  same way, since Grappler turns them into `AddN`.
- **Reads before writes.** Grappler's dependency optimizer drops the control edge from a read of a variable to a later
  write if another path joins the two. It does so even if that path leads through an `IdentityN` (Keras's optimizers put
  one around all gradients) from one tensor to another, and is gone when Grappler takes the `IdentityN` apart a moment
  later (`grappler/optimizers/dependency_optimizer.cc`). `_Accesses` has such an edge lead through an op that Grappler
  keeps.

None of this changes a result that had only one possible value before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

import numpy as np
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, func_graph, tensor_util
from tensorflow.python.ops import gen_array_ops
from tensorflow.python.ops.parallel_for import pfor

from detrain.base.in_place import in_place_of

_SUMS: Final = frozenset({"Add", "AddN", "AddV2"})
_PRODUCTS: Final = {"Mul": (0, 1), "RealDiv": (1,)}  # with the inputs that Grappler factors out of sums
_HANDED_ON: Final = frozenset({
    *("Bitcast", "BroadcastTo", "Cast", "CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "PreventGradient", "Reshape"),
    *("Squeeze", "StopGradient", "Tile", "Transpose"),
})  # fmt: skip
# Over no axes, or over axes of length 1, they hand their input's buffer on.
_REDUCTIONS: Final = frozenset({"Max", "Mean", "Min", "Prod", "Sum"})
_WITH_CONSTANT: Final = frozenset({"Mul", "RealDiv", "Sub"})  # Grappler drops these if the constant is 1 or 0
_HELD: Final = frozenset({"Const", "Placeholder", "ReadVariableOp"})
# The output of such an op may lie in another tensor's buffer, or may also be an output of its function, because
# gradients taken outside of the function need it.
_MAYBE_HELD: Final = frozenset({
    *("Case", "Cholesky", "ConcatV2", "Cumprod", "Elu", "Exp", "Expm1", "FusedBatchNormV3", "IdentityN", "If", "Inv"),
    *("IteratorGetNext", "LogSoftmax", "MatrixInverse", "MatrixSolve", "Max", "MaxPool", "Min", "OptionalGetValue", "Pack", "Pad"),
    *("PadV2", "PartitionedCall", "Pow", "Prod", "Reciprocal", "Relu", "Relu6", "ReverseV2", "Roll", "Rsqrt", "Selu", "Sigmoid"),
    *("Slice", "Softmax", "Split", "SplitV", "Sqrt", "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile"),
    *("StridedSlice", "Tanh", "TensorListGetItem", "TensorListPopBack", "Unpack", "While"),
})  # fmt: skip
_CALLS: Final = frozenset({
    *("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile", "While"),
})  # fmt: skip


def fix_order() -> None:
    """Have each function that is traced from now on come to a single result."""
    config = context.Context.config.fget
    traced = func_graph.func_graph_from_py_func

    def settled(self: Any) -> Any:
        found = config(self)
        found.graph_options.rewrite_options.memory_optimization = rewriter_config_pb2.RewriterConfig.SWAPPING_HEURISTICS
        return found

    @in_place_of(func_graph, "func_graph_from_py_func")
    def trace(*args: Any, **kwargs: Any) -> Any:
        graph = traced(*args, **kwargs)
        _Accesses(graph).settle()
        _Sums(graph).settle()
        return graph

    context.Context.config = property(settled, doc=context.Context.config.__doc__)
    pfor.RegisterPFor("Snapshot")(_vectorize)


class _Buffer(Enum):
    """The other users of a summand's buffer at the moment when the sum runs."""

    FREE = 0  # none: all other readers run before
    MAYBE = 1  # none, unless a function around this graph holds it
    RACY = 2  # a reader may or may not have run by then
    HELD = 3  # a reader runs after the sum, or the buffer is held all the time


_Leaf = tuple[Any, int]
"""A summand of a sum, or of a tree of sums: the op that adds it, and the index of the op's input."""


class _Sums:
    """The sums of three tensors and more in a graph.

    Grappler sorts the summands by name. The kernel adds them in that order, but begins at the first whose buffer is
    free. So the order is fixed if that one is known, or is one of the first two in any case. Otherwise a `Snapshot` (a
    copy, unless the buffer is free by then) fixes it: of the first tensor that nobody else reads, or of the very first
    one, where the kernel mostly begins anyway.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._outputs = {tensor.name for tensor in graph.outputs}

    def settle(self) -> None:
        ops = self._graph.get_operations()
        sums: list[tuple[Any, list[_Leaf]]] = []
        for root in ops:
            if root.type in _SUMS and _can_differ(root.outputs[0]) and not self._is_part(root.outputs[0]):
                leaves = list(self._leaves(root))
                sums += [(root, together) for together in (leaves, *_without_factors(leaves)) if len(together) > 2]
        if not sums:
            return
        readers = [self._readers(leaves) for _, leaves in sums]
        reached = _PathsFromOps(
            [*(root.name for root, _ in sums), *(op.name for found in readers for each in found.values() for op in each or ())]
        )
        for op in ops:
            reached.add(op)
        for (root, leaves), found in zip(sums, readers, strict=True):
            if any(_input(leaf).name not in found for leaf in leaves):
                continue  # a sum that has been settled had the same products
            before = reached.union(_input(leaf).op.name for leaf in leaves)
            buffers = {name: self._buffer(root, before, each, reached) for name, each in found.items()}
            leaves.sort(key=lambda leaf: _sorting_name(_input(leaf)))
            self._settle(leaves, [_of_maker(buffers[_input(leaf).name], _input(leaf).op) for leaf in leaves])

    def _is_part(self, tensor: Any) -> bool:
        """Return whether a tensor's only reader adds it to others: Grappler may then make one sum of both ops."""
        consumers = tensor.consumers()
        if len(consumers) != 1 or tensor.name in self._outputs or consumers[0].type not in _SUMS:
            return False
        return [each.name for each in consumers[0].inputs].count(tensor.name) == 1

    def _leaves(self, root: Any) -> Iterator[_Leaf]:
        waiting = [root]
        while waiting:
            op = waiting.pop()
            for index, tensor in enumerate(op.inputs):
                if tensor.op.type in _SUMS and self._is_part(tensor):
                    waiting.append(tensor.op)
                else:
                    yield op, index

    def _readers(self, leaves: list[_Leaf]) -> dict[str, list[Any] | None]:
        """Return the other ops that read the summands' buffers, by the tensors' names; None: the buffer is held all the
        time.
        """
        own = {op.name for op, _ in leaves}
        tensors = {_input(leaf).name: _input(leaf) for leaf in leaves}
        times = Counter(_input(leaf).name for leaf in leaves)
        return {name: self._readers_of(tensor, own) if times[name] == 1 else None for name, tensor in tensors.items()}

    def _readers_of(self, tensor: Any, own: set[str]) -> list[Any] | None:
        found: list[Any] = []
        while True:
            waiting = [tensor]
            while waiting:
                each = waiting.pop()
                if each.name in self._outputs:
                    return None
                for op in each.consumers():
                    if each is not tensor or op.name not in own:
                        found.append(op)
                        if op.type in _MAYBE_HELD or _same_buffer(op) is not None:
                            waiting += op.outputs
            source = _same_buffer(tensor.op)
            if source is None:
                return None if tensor.op.type in _HELD else found
            own, tensor = {tensor.op.name}, source

    def _buffer(self, root: Any, before: int, readers: list[Any] | None, reached: _PathsFromOps) -> _Buffer:
        if readers is None or any(reached.leads(root.name, op.name) for op in readers):
            return _Buffer.HELD
        # Ops inside of a called function may still run after the call has returned.
        comes_before = all(reached.is_among(op.name, before) and not _is_call(op) for op in readers)
        return _Buffer.FREE if comes_before else _Buffer.RACY

    def _settle(self, leaves: list[_Leaf], buffers: list[_Buffer]) -> None:
        free = next((place for place, buffer in enumerate(buffers) if buffer is _Buffer.FREE), 0)
        starts = {place for place, buffer in enumerate(buffers) if buffer in (_Buffer.MAYBE, _Buffer.RACY)}
        starts = {place for place in starts if place < free or buffers[free] is not _Buffer.FREE} | {free}
        if len(starts) == 1 or max(starts) < 2:
            return
        start = next((place for place, buffer in enumerate(buffers) if buffer in (_Buffer.FREE, _Buffer.MAYBE)), 0)
        first, chosen = leaves[0 if start > 1 else start], leaves[start]
        copies = {chosen: self._snapshot(chosen, first), first: self._snapshot(first, chosen)}
        for (op, index), copy in copies.items():
            op._update_input(index, copy)

    def _snapshot(self, leaf: _Leaf, place: _Leaf) -> Any:
        """Return a copy of one summand, under a name that sorts where another summand's name does."""
        tensor = _input(leaf)
        name = f"{_input(place).op.name}.{leaf[0].name.replace('/', '.')}"
        attrs = {
            "T": attr_value_pb2.AttrValue(type=tensor.dtype.as_datatype_enum),
            "_gradient_op_type": attr_value_pb2.AttrValue(s=b"Identity"),
            "_detrain_copy": attr_value_pb2.AttrValue(s=name.encode()),  # keeps two copies of one tensor from being merged
        }
        return _made(self._graph, "Snapshot", [tensor], tensor.op.device, name, attrs).outputs[0]


class _Accesses:
    """The control edges in a graph that order accesses to variables."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def settle(self) -> None:
        ops = self._graph.get_operations()
        if not any(_is_mixing(op) for op in ops):
            return
        accesses = [op for op in ops if op.control_inputs and _accesses(op)]
        edges = [(op, before) for op in accesses for before in op.control_inputs if _accesses(before)]
        starts = [before.name for _, before in edges]
        true, apparent = _PathsFromOps(starts), _PathsFromOps(starts, is_mixed=True)
        for op in ops:
            true.add(op)
            apparent.add(op)
        kept: dict[str, list[Any]] = defaultdict(list)
        for op, before in edges:
            is_call = _is_call(op) or _is_call(before)
            if is_call or (apparent.leads_otherwise(before, op) and not true.leads_otherwise(before, op)):
                kept[op.name].append(before)
        for op in ops:
            if op.name in kept:
                self._keep(op, kept[op.name])

    def _keep(self, op: Any, befores: list[Any]) -> None:
        names = {before.name for before in befores}
        others = [before for before in op.control_inputs if before.name not in names]
        between = []
        for before in befores:
            trigger = _made(self._graph, "ControlTrigger", [], op.device, f"{op.name}.after", {})
            trigger._add_control_inputs([before])
            between.append(trigger)
        op._remove_all_control_inputs()
        op._add_control_inputs([*others, *between])


class _PathsFromOps:
    """The ops, out of a given set, from which paths lead to each tensor. `is_mixed`: a path also leads from any input
    of a mixing op to any of its outputs.
    """

    def __init__(self, names: Iterable[str], *, is_mixed: bool = False) -> None:
        self._bits = {name: 1 << place for place, name in enumerate(dict.fromkeys(names))}
        self._is_mixed = is_mixed
        self._of: dict[str, int] = {}

    def add(self, op: Any) -> None:
        """Note an op; the ops that make its inputs must have been noted before."""
        own = self._bits.get(op.name, 0) | self.union(before.name for before in op.control_inputs)
        self._of[op.name] = own | self.union(tensor.name for tensor in op.inputs)
        for place, tensor in enumerate(op.outputs):
            if self._is_mixed or not _is_mixing(op):
                self._of[tensor.name] = self._of[op.name]
            else:
                self._of[tensor.name] = own | (0 if _is_call(op) else self._of.get(op.inputs[place].name, 0))

    def leads(self, start: str, end: str) -> bool:
        """Return whether a path leads from one op to another one."""
        return start != end and bool(self._of.get(end, 0) & self._bits[start])

    def is_among(self, name: str, union: int) -> bool:
        """Return whether an op is in a union that `union` returned."""
        return bool(union & self._bits[name])

    def leads_otherwise(self, start: Any, end: Any) -> bool:
        """Return whether a path other than the control edge between two ops leads from the first to the second."""
        names = [*(tensor.name for tensor in end.inputs), *(op.name for op in end.control_inputs if op.name != start.name)]
        return bool(self.union(names) & self._bits[start.name])

    def union(self, names: Iterable[str]) -> int:
        """Return, as bits, the ops from which paths lead to any of these ops and tensors; an op leads to itself."""
        found = 0
        for name in names:
            found |= self._of.get(name, 0)
        return found


def _is_call(op: Any) -> bool:
    return op.type in _CALLS


def _is_mixing(op: Any) -> bool:
    """Return whether some output of an op may not depend on some input, though the graph looks as if it did."""
    return _is_call(op) or (op.type == "IdentityN" and len(op.inputs) > 1)


def _accesses(op: Any) -> bool:
    return any(tensor.dtype == dtypes.resource for tensor in op.inputs)


def _made(graph: Any, kind: str, inputs: list[Any], device: str, name: str, attrs: dict[str, Any]) -> Any:
    with graph.as_default():
        types = [tensor.dtype for tensor in inputs]
        op = graph._create_op_internal(kind, inputs, types, name=name, attrs=attrs, compute_device=False)
    op._set_device(device)
    return op


def _input(leaf: _Leaf) -> Any:
    return leaf[0].inputs[leaf[1]]


def _of_maker(buffer: _Buffer, maker: Any) -> _Buffer:
    """Return a buffer's state: FREE becomes MAYBE if the output of its tensor's maker may be held elsewhere."""
    while (source := _same_buffer(maker)) is not None:
        maker = source.op
    return _Buffer.MAYBE if buffer is _Buffer.FREE and maker.type in _MAYBE_HELD else buffer


def _same_buffer(op: Any) -> Any | None:
    """Return the input whose buffer an op's output may reuse; None if none is known to be reused."""
    if op.type in _WITH_CONSTANT and any(tensor.op.type == "Const" for tensor in op.inputs):
        return op.inputs[1] if op.inputs[0].op.type == "Const" else op.inputs[0]
    if op.type in _REDUCTIONS and not _reduces(op):
        return op.inputs[0]
    return op.inputs[0] if op.type in _HANDED_ON else None


def _reduces(op: Any) -> bool:
    """Return whether a reduction goes over an axis that is not known to have length 1."""
    axes = tensor_util.constant_value(op.inputs[1])
    if axes is None or op.inputs[0].shape.rank is None:
        return False
    return any(op.inputs[0].shape[int(axis)] != 1 for axis in np.atleast_1d(axes))


def _vectorize(copy: Any) -> Any:
    return pfor.wrap(gen_array_ops.snapshot(input=copy.stacked_input(0)), True)


def _can_differ(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _sorting_name(tensor: Any) -> str:
    return tensor.op.name if tensor.value_index == 0 else str(tensor.name)


def _without_factors(leaves: list[_Leaf]) -> list[list[_Leaf]]:
    """Return the sums that are left when a common factor or divisor of products is taken out of a sum."""
    others: dict[tuple[str, str], list[_Leaf]] = defaultdict(list)
    for op, index in leaves:
        product = op.inputs[index].op
        for place in _PRODUCTS.get(product.type, ()):
            others[product.type, product.inputs[place].name].append((product, 1 - place))
    return list(others.values())
