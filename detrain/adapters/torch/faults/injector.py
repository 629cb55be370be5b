"""Puts faults into tensors: bits are changed in place, at positions of the tensor as a user sees it (row-major), for
any strides.

Autograd does not notice: the op runs below it, and it then keeps the faulty values for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from detrain.adapters.instruments import Also, OpInjector
from detrain.adapters.torch.faults.op_operands import INTEGERS, dtype_of
from detrain.adapters.torch.held_memory import unseen
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import little_endian
from detrain.faults.experiment import UNARMED, Firing, Injection


class Injectors:
    """The faults that are put into one step, each at an op of its own; the record of the first is reported."""

    def __init__(self) -> None:
        self.first = Injector()
        self._others: list[tuple[Injector, int]] = []
        self._due = self.first

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Select these injections from now on, with empty records."""
        self.first.select(injection)
        self._others = [(Injector(), occurrence) for _, occurrence in also]
        for (injector, _), (other, _) in zip(self._others, also, strict=True):
            injector.select(other)

    def arm(self, occurrence: int) -> None:
        """Hit the sites of all faults; with `UNARMED`, hit none."""
        self.first.arm(occurrence)
        for injector, turn in self._others:
            injector.arm(turn if occurrence != UNARMED else occurrence)

    def disarm(self) -> None:
        """Hit no run of any site."""
        for each in self.all():
            each.disarm()

    def check(self) -> None:
        """Raise FaultInvalid if an op that was to be hit gives other bits when it runs twice."""
        for each in self.all():
            each.check()

    def firing(self) -> Firing | None:
        """Return the first fault's record, with the fewest hits and all misfits of the faults; None until all ran."""
        found = [firing for each in self.all() if (firing := each.firing()) is not None]
        if self.first.firing() is None or len(found) <= len(self._others):
            return None
        return msgspec.structs.replace(
            found[0], count=min(each.count for each in found), misfits=sum(each.misfits for each in found)
        )

    def must_hit(self, name: str, signature: str) -> bool:
        """Return whether to hit the op that is about to run; count this run if the op is a site."""
        due = [each for each in self.all() if each.must_hit(name, signature)]
        self._due = due[0] if due else self.first
        return bool(due)

    def hit(self, args: Sequence[Any], run: Callable[[Sequence[Any]], Any], outputs_of: Callable[[Any], list[Any]]) -> Any:
        """Run the op that is to be hit, with its fault (see `Injector.hit`)."""
        return self._due.hit(args, run, outputs_of)

    def copy_with_fault(self, tensor: Any) -> Any:
        """Return a faulty copy of a tensor for the op that is to be hit (see `Injector.copy_with_fault`)."""
        return self._due.copy_with_fault(tensor)

    def all(self) -> list[Injector]:
        """Return all injectors, each with its fault."""
        return [self.first, *(injector for injector, _ in self._others)]


class Injector(OpInjector):
    """Puts the selected injection into tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._is_changing = False

    def select(self, injection: Injection) -> None:
        """Select this injection from now on, with an empty record."""
        super().select(injection)
        self._is_changing = False

    def check(self) -> None:
        """Raise FaultInvalid if the op that was to be hit gives other bits when it runs twice."""
        if self._is_changing and self.injection is not None:
            raise FaultInvalid(
                f"{self.injection.site!r} gives other bits when it is run once more, so nothing can be said of a fault in its "
                f"{self.injection.operand}",
                "choose an output for the fault, or another site",
            )

    def may_take(self, args: Sequence[Any], outputs: Sequence[Any], *, is_now: bool) -> bool:
        """Return whether an op has the fault's dtype and shapes; if it has not and is to be hit now, count a misfit."""
        target, golden = self._target(args, outputs)
        is_fit = self.injection is not None and self._fits(self.injection, target, golden)
        self._misfits += is_now and not is_fit
        return is_fit

    def hit(self, args: Sequence[Any], run: Callable[[Sequence[Any]], Any], outputs_of: Callable[[Any], list[Any]]) -> Any:
        """Run an op and return its result with the fault in it, or without, if the operand or the output has another
        shape. `run` runs the op on arguments, `outputs_of` returns the outputs in a result.
        """
        injection = self.injection
        assert injection is not None
        result = run(args)
        with unseen():
            self._change(injection, args, run, outputs_of, result)
        return result

    def copy_with_fault(self, tensor: Any) -> Any:
        """Return a faulty copy of a tensor that an op is about to take in; the tensor itself, if its shape differs."""
        injection = self.injection
        assert injection is not None
        with unseen():
            if not self._fits(injection, tensor, tensor):
                self._misfits += 1
                return tensor
        return self.faulty(tensor)

    def faulty(self, tensor: Any) -> Any:
        """Return a copy of a tensor that has the fault's shape, with the fault in it."""
        assert self.injection is not None
        with unseen():
            self._count += 1
            copy = bits_copied(tensor)
            self._put(self.injection, copy)
            return copy

    def _change(
        self,
        injection: Injection,
        args: Sequence[Any],
        run: Callable[[Sequence[Any]], Any],
        outputs_of: Callable[[Any], list[Any]],
        result: Any,
    ) -> None:
        target, golden = self._target(args, outputs_of(result))
        place = injection.index if injection.operand != "output" else None
        if not self._fits(injection, target, golden):
            self._misfits += 1
            return
        if place is None:
            self._count += 1
            self._put(injection, target)
            return
        copy = bits_copied(target)

        def again() -> Any:
            return outputs_of(run([copy if number == place else each for number, each in enumerate(args)]))[self._output]

        if not _is_same(again(), golden):
            self._is_changing = True
            return
        self._count += 1
        self._put(injection, copy)
        _take(golden, again(), injection.array("limited"))

    def _target(self, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, Any]:
        """Return the tensor of an op that is hit, and the output that sees the fault; None for one that is missing."""
        golden = outputs[self._output] if self._output < len(outputs) else None
        place = self.injection.index if self.injection is not None and self.injection.operand != "output" else None
        return golden if place is None else args[place] if place < len(args) else None, golden

    def mixed(self, golden: Any, faulty: Any) -> Any:
        """Return an output with the faulty values only at the positions to which an operand's fault is limited."""
        assert self.injection is not None
        with unseen():
            found = bits_copied(golden)
            _take(found, faulty, self.injection.array("limited"))
            return found

    def strike(self, injection: Injection, tensor: Any) -> bool:
        """Change the bits of a tensor in memory, outside of ops; return False if its dtype or shape is another."""
        with unseen():
            if not self._fits(injection, tensor, tensor):
                return False
            self._count += 1
            self._put(injection, tensor)
            return True

    def _fits(self, injection: Injection, target: Any, golden: Any) -> bool:
        if golden is None or dtype_of(target) != injection.dtype or tuple(target.shape) != injection.shape:
            return False
        limited = injection.array("limited")
        is_other = limited.size and (limited.max() >= golden.numel() or injection.outputs not in (0, golden.numel()))
        return not is_other

    def _put(self, injection: Injection, tensor: Any) -> None:
        """Change the bits of a tensor, and keep the old and the new bits."""
        memory = _memory(tensor)
        at = _places(tensor, injection.array("positions"))
        keep, flip = (torch.from_numpy(injection.array(name)).to(memory.device) for name in ("keep", "flip"))
        values = (memory[_places(tensor, injection.array("sources"))] & keep) ^ flip
        self._golden = little_endian(memory[at].cpu().numpy())
        memory[at] = values
        self._injected = little_endian(memory[at].cpu().numpy())


def bits_of(tensor: Any) -> Any:
    """Return the bit patterns of a tensor, as integers in the same memory."""
    integers = torch.empty(0, dtype=INTEGERS[tensor.dtype], device=tensor.device)
    return integers.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _memory(tensor: Any) -> Any:
    """Return the whole storage of a tensor, as integers."""
    storage = tensor.untyped_storage()
    integers = torch.empty(0, dtype=INTEGERS[tensor.dtype], device=tensor.device)
    return integers.set_(storage, 0, (storage.nbytes() // integers.itemsize,), (1,))


def _places(tensor: Any, positions: Any) -> Any:
    """Return the places in a tensor's storage of the elements at flat row-major positions."""
    found = np.full(positions.shape, tensor.storage_offset(), np.int64)
    for index, stride in zip(
        np.unravel_index(positions, tuple(tensor.shape)) if tensor.dim() else (), tensor.stride(), strict=True
    ):
        found += index.astype(np.int64) * stride
    return torch.from_numpy(found).to(tensor.device)


def bits_copied(tensor: Any) -> Any:
    """Return a copy of a tensor with its own memory, in the same layout unless elements share a place there; return any
    other object itself.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    reach, strides = 0, tensor.stride()
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            strides = torch.empty(tensor.shape, device="meta").stride()
        reach += (size - 1) * stride
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    into, source = (bits_of(copy), bits_of(tensor)) if tensor.dtype in INTEGERS else (copy, tensor)
    into.copy_(source)
    return copy


def _is_same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((bits_of(one) == bits_of(other)).all())


def _take(golden: Any, faulty: Any, limited: Any) -> None:
    """Write a faulty output into the golden one, completely or at flat positions."""
    if not limited.size:
        bits_of(golden).copy_(bits_of(faulty))
    else:
        _memory(golden)[_places(golden, limited)] = _memory(faulty)[_places(faulty, limited)]
