"""Puts faults into tensors: bits are changed where they lie, at positions of the tensor as a user sees it (row-major),
whatever its strides.

Autograd sees none of it: the op runs below it, and what it then keeps for the backward pass is what was put in.
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
    """Faults that are put into one step, each at an op of its own; the first is the one that is told of."""

    def __init__(self) -> None:
        self.first = Injector()
        self._others: list[tuple[Injector, int]] = []
        self._due = self.first

    def select(self, injection: Injection, also: Also = ()) -> None:
        """Put these in from now on; nothing has been done of them."""
        self.first.select(injection)
        self._others = [(Injector(), occurrence) for _, occurrence in also]
        for (injector, _), (other, _) in zip(self._others, also, strict=True):
            injector.select(other)

    def arm(self, occurrence: int) -> None:
        """Have their sites hit; by `UNARMED` none."""
        self.first.arm(occurrence)
        for injector, turn in self._others:
            injector.arm(turn if occurrence != UNARMED else occurrence)

    def disarm(self) -> None:
        """Have no run hit. Raises FaultInvalid where an op does not give the same bits twice."""
        for each in self.all():
            each.disarm()

    def check(self) -> None:
        """Raise FaultInvalid where an op that was to be hit does not give the same bits twice."""
        for each in self.all():
            each.check()

    def firing(self) -> Firing | None:
        """Return what has been done so far: as often as all of them were."""
        found = [firing for each in self.all() if (firing := each.firing()) is not None]
        if self.first.firing() is None or len(found) <= len(self._others):
            return None
        return msgspec.structs.replace(
            found[0], count=min(each.count for each in found), misfits=sum(each.misfits for each in found)
        )

    def must_hit(self, name: str, signature: str) -> bool:
        """Return whether the op that is about to run is to be hit; it counts as run."""
        due = [each for each in self.all() if each.must_hit(name, signature)]
        self._due = due[0] if due else self.first
        return bool(due)

    def hit(self, args: Sequence[Any], run: Callable[[Sequence[Any]], Any], outputs_of: Callable[[Any], list[Any]]) -> Any:
        """Run the op that is to be hit (see `Injector.hit`)."""
        return self._due.hit(args, run, outputs_of)

    def copy_with_fault(self, tensor: Any) -> Any:
        """Return a copy of what the op that is to be hit takes in (see `Injector.copy_with_fault`)."""
        return self._due.copy_with_fault(tensor)

    def all(self) -> list[Injector]:
        """Return them, each with its fault."""
        return [self.first, *(injector for injector, _ in self._others)]


class Injector(OpInjector):
    """Puts it into tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._is_changing = False

    def select(self, injection: Injection) -> None:
        """Put this injection in from now on; nothing has been done of it."""
        super().select(injection)
        self._is_changing = False

    def check(self) -> None:
        """Raise FaultInvalid where the op that was to be hit does not give the same bits twice."""
        if self._is_changing and self.injection is not None:
            raise FaultInvalid(
                f"{self.injection.site!r} gives other bits when it is run once more, so nothing can be said of a fault in its "
                f"{self.injection.operand}",
                "choose an output for the fault, or another site",
            )

    def may_take(self, args: Sequence[Any], outputs: Sequence[Any], *, is_now: bool) -> bool:
        """Return whether an op has the shapes that the fault is for; of one that is to be hit and has not, note it."""
        target, golden = self._target(args, outputs)
        is_fit = self.injection is not None and self._fits(self.injection, target, golden)
        self._misfits += is_now and not is_fit
        return is_fit

    def hit(self, args: Sequence[Any], run: Callable[[Sequence[Any]], Any], outputs_of: Callable[[Any], list[Any]]) -> Any:
        """Run an op and return its result with the fault in it; as it is, if the operand or the output has another
        shape. `run` runs it on arguments, `outputs_of` returns the outputs of a result.
        """
        injection = self.injection
        assert injection is not None
        result = run(args)
        with unseen():
            self._change(injection, args, run, outputs_of, result)
        return result

    def copy_with_fault(self, tensor: Any) -> Any:
        """Return a copy of what an op is about to take in, with the fault in it; itself, if it has another shape."""
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
        """Return the tensor of an op that is hit, and the output that sees it; None for one that it does not have."""
        golden = outputs[self._output] if self._output < len(outputs) else None
        place = self.injection.index if self.injection is not None and self.injection.operand != "output" else None
        return golden if place is None else args[place] if place < len(args) else None, golden

    def mixed(self, golden: Any, faulty: Any) -> Any:
        """Return an output that sees a fault of an operand where it is limited to."""
        assert self.injection is not None
        with unseen():
            found = bits_copied(golden)
            _take(found, faulty, self.injection.array("limited"))
            return found

    def strike(self, injection: Injection, tensor: Any) -> bool:
        """Change the bits of a tensor that no op is giving; return whether it is the one that is meant."""
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
        """Change the bits of a tensor, and keep what they were and what they are."""
        memory = _memory(tensor)
        at = _places(tensor, injection.array("positions"))
        keep, flip = (torch.from_numpy(injection.array(name)).to(memory.device) for name in ("keep", "flip"))
        values = (memory[_places(tensor, injection.array("sources"))] & keep) ^ flip
        self._golden = little_endian(memory[at].cpu().numpy())
        memory[at] = values
        self._injected = little_endian(memory[at].cpu().numpy())


def bits_of(tensor: Any) -> Any:
    """Return the bit patterns of a tensor, as integers at the same memory."""
    integers = torch.empty(0, dtype=INTEGERS[tensor.dtype], device=tensor.device)
    return integers.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _memory(tensor: Any) -> Any:
    """Return the whole memory that a tensor lies in, as integers."""
    storage = tensor.untyped_storage()
    integers = torch.empty(0, dtype=INTEGERS[tensor.dtype], device=tensor.device)
    return integers.set_(storage, 0, (storage.nbytes() // integers.itemsize,), (1,))


def _places(tensor: Any, positions: Any) -> Any:
    """Return where in its memory the elements of a tensor lie that are at flat row-major positions."""
    found = np.full(positions.shape, tensor.storage_offset(), np.int64)
    for index, stride in zip(
        np.unravel_index(positions, tuple(tensor.shape)) if tensor.dim() else (), tensor.stride(), strict=True
    ):
        found += index.astype(np.int64) * stride
    return torch.from_numpy(found).to(tensor.device)


def bits_copied(tensor: Any) -> Any:
    """Return a copy with a memory of its own, in the same layout, unless elements share a place there; of anything else
    than a tensor itself.
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
    """Write a faulty output into the golden one, all of it or at flat positions."""
    if not limited.size:
        bits_of(golden).copy_(bits_of(faulty))
    else:
        _memory(golden)[_places(golden, limited)] = _memory(faulty)[_places(faulty, limited)]
