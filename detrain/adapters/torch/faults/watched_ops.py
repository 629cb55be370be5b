"""The watch of every op of a step, forward, backward and update: a dispatch mode of PyTorch, on only in steps that need
it.

A mode lies below autograd: if it changes an op's result, autograd keeps the changed result for the backward pass, and
all later ops take it in. Autograd runs the backward pass of a CPU in the calling thread, and gives its threads for
other devices the modes of that thread.

A tensor that outlives the step (a name leads to it, or no op of the step has made it: the batch) is a site where an op
reads it (`load`), for that op alone, and where an op copies into it. So is a value that Python asks for.

A site is the k-th op of its name within one call of a module, in a stage; called again, the module runs the site again.
Outside of modules it is the k-th of the step. Its signature is a digest of the ops before it there: in a step without
one of these (an optimizer's first step), the k-th op may be another.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from detrain.adapters.torch.faults.first_accesses import FirstAccesses
from detrain.adapters.torch.faults.injector import Injectors
from detrain.adapters.torch.faults.op_operands import (
    COPY,
    DECIDES,
    LITERALS,
    LOAD,
    attributes_of,
    computes,
    dtype_of,
    is_pure,
    name_of,
    operands_of,
    outputs_of,
    read_by,
    role_of_output,
    tensors_in,
    with_another,
)
from detrain.adapters.torch.faults.step_place import OfNode, OpPlace, StepCalls
from detrain.adapters.torch.held_memory import unseen
from detrain.faults.sites import CONTRACTIONS, Access, OperandShape, Role, Site, Use, output_name, places_of

GRAPH: Final = "graph"
"""The word in names of digests where a compiled graph has run."""
_Factor = tuple[weakref.ref[Any], int, int]
"""The place of a product's factor: storage, offset, number of elements. A transposed factor has the same place."""


class WatchedOps(msgspec.Struct):
    """Watches the ops of a step: notes their sites, takes digests, and has faults put in."""

    where: StepCalls
    injector: Injectors
    is_inference: bool = False
    """Whether a step takes no gradients."""
    _mode: Any = None
    _process: int = 0
    _thread: int = msgspec.field(default_factory=threading.get_ident)
    _notes: bool = False
    _digests: bool = False
    _turns: dict[tuple[str, Hashable], int] = {}
    """The number of the last run of each op (stage, layer and name) in each call of a module."""
    _before: dict[OpPlace, str] = {}
    """A digest of the names of the ops that have run at each place."""
    _sites: dict[str, Site] = {}
    _taken: list[tuple[str, int, int]] = []
    _factors: dict[Hashable, tuple[_Factor, _Factor]] = {}
    """Input and weight of each product, by the number of autograd's function for it."""
    _known: dict[int, weakref.ref[Any]] = {}
    """Storages of which a digest was taken, by identity."""
    _held: dict[int, weakref.ref[Any]] = {}
    """Storages of parameters, buffers and the state of optimizers, by identity."""
    _made: dict[int, weakref.ref[Any]] = {}
    """Storages that ops of the step have made, by identity."""
    _accesses: FirstAccesses = msgspec.field(default_factory=FirstAccesses)
    _has_gradient: bool = False
    _graph: str = ""
    """The name of the compiled graph that runs, if digests are taken."""
    of_node: OfNode | None = None
    """The node of a compiled graph for which an op is run; None: the op runs by itself."""

    def begin(self, *, notes: bool = False, digests: bool = False) -> None:
        """Begin to watch a step in this thread. `notes`: keep its sites; `digests`: take digests of ops' outputs."""
        self._notes, self._digests, self._has_gradient = notes, digests, False
        self._process, self._thread = os.getpid(), threading.get_ident()
        for kept in (self._turns, self._before, self._sites, self._factors, self._known, self._held, self._made):
            kept.clear()
        self._taken = []
        self.where.begin()
        held = self.where.held()
        _remember(self._held, held)
        self._accesses.begin(held if notes else [])
        self._mode = _WatchMode(self._run)
        _push_mode(self._mode)

    def end(self) -> None:
        """Stop watching the step."""
        if self._mode is None:
            return
        self.where.end()
        self._take_off()
        self._mode = None

    def _take_off(self) -> None:
        above: list[Any] = []
        while torch._C._len_torch_dispatch_stack():
            each = _pop_mode()
            if each is self._mode:
                break
            above.append(each)
        for each in reversed(above):
            _push_mode(each)

    def is_of_thread(self) -> bool:
        """Return whether this is the thread with the watched steps, or one in which its backward pass runs."""
        return threading.get_ident() == self._thread or torch._C._current_autograd_node() is not None

    @property
    def is_on(self) -> bool:
        """Whether the ops of this step are watched."""
        return self._mode is not None and os.getpid() == self._process

    def enter_compiled(self, owner: Any) -> None:
        """See no ops: under a mode PyTorch would not run compiled code. `Compiled` reports the graphs that run."""
        self._take_off()
        self.where.enter_compiled(owner)
        self._accesses.is_whole = False

    def leave_compiled(self, owner: Any) -> None:
        """See ops again."""
        self.where.leave_compiled(owner)
        _push_mode(self._mode)

    def begin_graph(self, place: OpPlace, args: Sequence[Any], copies: Iterable[tuple[Any, Any]]) -> None:
        """Note that a compiled graph is called, before the walk through it: copies stand for the arguments it writes.

        The ops of the walk are not those that run, so digests are taken of the graph's arguments and outputs alone.
        """
        self._graph = self._name(place, GRAPH)[0] if self._digests else ""
        if self._digests:
            self._take_digests_of_arguments(self._graph, args)
            self._digests = False
        for original, copy in copies:
            for kept in (self._held, self._made):
                if _is_in(kept, original):
                    _remember(kept, [copy])
            self._accesses.note_read([original])

    def given_from_nowhere(self, tensor: Any) -> Any:
        """Note and return a tensor that the step has made by code that is no watched op."""
        self._made_by([tensor], ())
        return tensor

    def end_graph(self, place: OpPlace, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Note that the compiled graph has run."""
        given = list(tensors_in(outputs))
        self._made_by(given, list(tensors_in(args)))
        self.where.note(place, [], given, computes=True)
        self._digests = bool(self._graph)
        for number, each in enumerate(given if self._digests else ()):
            self._take_digest(output_name(self._graph, number), each)

    def sites(self) -> list[Site]:
        """Return the sites of the step; none if steps train and this one takes no gradients."""
        return list(self._sites.values()) if self._has_gradient or self.is_inference else []

    def access(self, tensor: Any) -> Access | None:
        """Return the noted step's first accesses to a tensor that is older than the step."""
        return self._accesses.of(tensor)

    def digests(self) -> list[tuple[str, int, int]]:
        """Return (site, replica, digest) for each output of each op, in order, and for each argument that comes from
        outside the step.
        """
        return self._taken

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not isinstance(func, torch._ops.OpOverload) or os.getpid() != self._process:  # a worker of a loader, forked here
            return func(*args, **kwargs)
        place = self.where.place(list(tensors_in((*args, *kwargs.values()))))
        return self.run_at(place, func, args, kwargs)

    def run_at(self, place: OpPlace, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op at a place; all work on an op is done here."""
        inputs = list(tensors_in((*args, *kwargs.values())))
        self._has_gradient |= place.stage == "backward"
        self._accesses.note(func, args, kwargs)
        args, kwargs = self._taken_in(func, place, args, kwargs)
        is_copy = name_of(func) == COPY and _is_in(self._held, args[0])
        if not computes(func) and not is_copy:
            result = func(*args, **kwargs)
            given = list(tensors_in(result if isinstance(result, list | tuple) else [result]))
            self._made_by(given, () if name_of(func) in LITERALS else inputs)
            self.where.note(place, inputs, given, computes=False)
            return result
        op = name_of(func)
        name, signature = self._name(place, op)
        if not is_copy:  # whether a copy is a site depends on the tensors that exist already
            self._before[place] = signature

        def given_by(result: Any) -> list[Any]:
            return outputs_of(func, args, kwargs, result)

        if self._digests:
            self._take_digests_of_arguments(name, inputs)
        if self.injector.must_hit(name, signature):
            result = self.injector.hit(args, lambda values: func(*values, **kwargs), given_by)
        else:
            result = func(*args, **kwargs)
        outputs = given_by(result)
        self._made_by(list(tensors_in(outputs)), inputs)
        self.where.note(place, inputs, list(tensors_in(outputs)), computes=not is_copy)
        if self._notes:
            self._note(name, signature, place, func, args, outputs)
        for number, output in enumerate(outputs if self._digests else ()):
            self._take_digest(output_name(name, number), output)
        return result

    def _name(self, place: OpPlace, op: str, read_as: str = "") -> tuple[str, str]:
        """Return the name and the signature of an op that is about to run. `read_as`: of a load, the op that reads and
        the place of what it reads; a call that is given a value of the step has one load fewer.
        """
        base = "/".join(part for part in (place.stage, place.layer, op) if part)
        if self.of_node is not None and (known := self.of_node.known(base)) is not None:
            return known
        turn = self._turns[base, place.call] = self._turns.get((base, place.call), -1) + 1
        signature = xxhash.xxh3_64_hexdigest(f"{self._before.get(place, '')} {op}{read_as}".encode())
        found = f"{base}#{turn}" if turn else base, signature
        if self.of_node is not None:
            self.of_node.names.append(found)
        return found

    def _taken_in(self, func: Any, place: OpPlace, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of an op that is about to run; the one that is to be hit, if any, is a faulty copy."""
        decides = name_of(func) == DECIDES
        for number, each in enumerate(read_by(func, args, kwargs)):
            is_load = _is_in(self._held, each) or not _is_in(self._made, each)
            for op in (*([LOAD] if is_load else []), *([DECIDES] if decides else [])) if dtype_of(each) else ():
                name, signature = self._name(place, op, f" {name_of(func)} {number}" if op == LOAD else "")
                if self._notes:
                    self._enter(name, signature, place, op, {"output": (0, each)})
                if self.injector.must_hit(name, signature):
                    faulty = self.injector.copy_with_fault(each)
                    self._made_by([faulty], ())
                    args, kwargs = with_another(args, each, faulty), with_another(kwargs, each, faulty)
        return args, kwargs

    def take(self, tensor: Any) -> None:
        """Note a tensor that stands for the output of an op."""
        self._made_by([tensor], ())

    def _made_by(self, given: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Note the tensors that an op has given; those in the memory of an input are not new."""
        before: dict[int, weakref.ref[Any]] = {}
        _remember(before, inputs)
        _remember(self._made, [each for each in given if not _is_in(before, each)])

    def _take_digests_of_arguments(self, name: str, inputs: Sequence[Any]) -> None:
        for number, each in enumerate(inputs):
            if isinstance(each, torch.Tensor) and not _is_in(self._known, each):  # it comes from outside the step
                self._take_digest(f"argument {number} of {name}", each)

    def _take_digest(self, name: str, tensor: Any) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        self._known[id(storage)] = weakref.ref(storage)
        with unseen():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._taken.append((name, 0, xxhash.xxh3_64_intdigest(plain.numpy()) >> 1))

    def _note(self, name: str, signature: str, place: OpPlace, func: Any, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        op = name_of(func)
        role, is_turned = self._role(op, place, args) if op in CONTRACTIONS and is_pure(func) else ("", False)
        for number, output in enumerate(outputs):
            if not dtype_of(output):
                continue
            of_output = role_of_output(func, number) or (role if not number else "")
            operands = operands_of(func, args, number, of_output, is_turned=is_turned) | {"output": (number, output)}
            is_stored = not is_pure(func) and _is_in(self._held, output)
            self._enter(
                output_name(name, number),
                signature,
                place,
                op,
                operands,
                role=of_output,
                attributes=attributes_of(func, args),
                use="store" if is_stored else "",
            )

    def _enter(
        self,
        name: str,
        signature: str,
        place: OpPlace,
        op: str,
        operands: Mapping[str, tuple[int, Any]],
        *,
        role: Role = "",
        attributes: dict[str, list[int] | str | bool] | None = None,
        use: Use = "",
    ) -> None:
        """Note that a site has run."""
        known = self._sites.get(name)
        if known is not None:
            is_same = known.signature == signature  # else it is another op, and runs of it do not count
            self._sites[name] = msgspec.structs.replace(known, executions=known.executions + is_same)
            return
        self._sites[name] = Site(
            name=name,
            layer=place.layer,
            op=op,
            stage=place.stage,
            role=role,
            operands={each: OperandShape(at, tuple(tensor.shape), dtype_of(tensor)) for each, (at, tensor) in operands.items()},
            executions=1,
            is_alive=True,
            attributes=attributes or {},
            signature=signature,
            use=use,
        )

    def _role(self, op: str, place: OpPlace, args: Sequence[Any]) -> tuple[Role, bool]:
        """Return which gradient a product of the backward pass makes, and whether its weight comes before its input.

        The gradient of the input has the weight as a factor; the gradient of the weight has the input.
        """
        places = places_of(op)
        if max(places) >= len(args) or not all(isinstance(args[each], torch.Tensor) for each in places):
            return "", False
        first, second = (args[each] for each in places)
        if place.stage != "backward":
            number = torch.autograd._get_sequence_nr() - 1 if self.of_node is None else self.of_node.number
            is_turned = _is_parameter(first) and not _is_parameter(second)
            factors = (second, first) if is_turned else (first, second)
            self._factors.setdefault(number, (_factor(factors[0]), _factor(factors[1])))
            return "", is_turned
        node = torch._C._current_autograd_node()
        number = self.of_node.number if self.of_node is not None else node._sequence_nr() if node is not None else None
        known = self._factors.get(number)
        if known is None:
            return "", False
        is_input, is_weight = ([_lies_at(each, factor) for each in (first, second)] for factor in known)
        if any(is_weight) and not any(is_input):
            return "grad_in", is_weight == [True, False]
        if any(is_input) and not any(is_weight):
            return "grad_wt", is_input == [False, True]
        return "", False


class _WatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Hands each op to `run`."""

    supports_higher_order_operators: Final = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch then does not import its compiler for this mode, which would take seconds."""
        return False

    def __init__(self, run: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._run_op = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op."""
        return self._run_op(func, args, kwargs or {})


def _is_parameter(tensor: Any) -> bool:
    """Return whether a tensor is a leaf that gathers gradients, or a view of one."""
    whole = tensor._base if tensor._is_view() else tensor
    return bool(whole.is_leaf and whole.requires_grad)


def _factor(tensor: Any) -> _Factor:
    return weakref.ref(tensor.untyped_storage()), tensor.storage_offset(), tensor.numel()


def _lies_at(tensor: Any, factor: _Factor) -> bool:
    storage, offset, count = factor
    return storage() is tensor.untyped_storage() and (tensor.storage_offset(), tensor.numel()) == (offset, count)


def _remember(memories: dict[int, weakref.ref[Any]], tensors: Iterable[Any]) -> None:
    """Enter the storages of plain tensors."""
    for each in tensors:
        if _is_plain(each):
            storage = each.untyped_storage()
            memories[id(storage)] = weakref.ref(storage)


def _is_in(memories: Mapping[int, weakref.ref[Any]], tensor: Any) -> bool:
    known = memories.get(id(tensor.untyped_storage())) if _is_plain(tensor) else None
    return known is not None and known() is tensor.untyped_storage()


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
