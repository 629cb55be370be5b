"""Trainings that differ in the kinds of tensors that they hold."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.adapters.cut_world import Training
from tests.adapters.torch_optimizers import batch, descend
from tests.adapters.torch_resume import case


@case()
def manual_descent_in_place(w: Any) -> Training:
    w.weight, w.bias = torch.ones(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    while True:
        turn = yield
        (batch(turn) @ w.weight + w.bias).square().mean().backward()
        with torch.no_grad():
            for parameter in (w.weight, w.bias):
                parameter.sub_(parameter.grad, alpha=0.1)
        w.weight.grad.zero_()
        w.bias.grad = None


@case()
def manual_descent_that_binds_anew(w: Any) -> Training:
    w.weight = torch.ones(3, 2, requires_grad=True)
    w.first = w.weight
    while True:
        turn = yield
        (grad,) = torch.autograd.grad((batch(turn) @ w.weight).square().mean(), w.weight)
        w.weight = (w.weight - 0.1 * grad).detach().requires_grad_()


@case()
def large_tensors_that_stay_and_are_copied(w: Any) -> Training:
    w.weight = torch.arange(40_000.0)
    w.fixed, w.first, w.moving = torch.arange(40_000.0), w.weight, torch.zeros(40_000)
    while True:
        turn = yield
        if turn == 1:
            w.weight = w.weight.clone()
        w.moving += w.fixed + w.weight
        if turn == 4:
            w.weight += 1


@case()
def large_data_whose_name_a_batch_takes(w: Any) -> Training:
    w.weight, w.x = torch.zeros(3), torch.arange(60_000.0).reshape(20_000, 3)
    w.data = torch.utils.data.TensorDataset(w.x, w.x[:, 0])
    while True:
        turn = yield
        w.x, y = w.data[turn * 10 : turn * 10 + 10]
        w.weight += (w.x * y[:, None]).mean(0)


@case()
def a_large_part_of_a_memory_of_which_the_loop_sees_more(w: Any) -> Training:
    w.whole = None
    w.part = torch.empty(0).set_(torch.arange(60_000.0).untyped_storage(), 0, (30_000,))  # not a view: it has no `_base`
    while True:
        turn = yield
        w.whole = torch.empty(0).set_(w.part.untyped_storage(), 0, (60_000,))
        w.whole[50_000 + turn] += 1


@case()
def flat_buffers(w: Any) -> Training:
    w.model = nn.Linear(3, 2)
    w.flat = torch.cat([p.data.reshape(-1) for p in w.model.parameters()])
    w.grads = torch.zeros_like(w.flat)
    start = 0
    for parameter in w.model.parameters():
        stop = start + parameter.numel()
        parameter.data = w.flat[start:stop].view_as(parameter)
        parameter.grad = w.grads[start:stop].view_as(parameter)
        start = stop
    while True:
        turn = yield
        w.model(batch(turn)).square().mean().backward()
        w.flat.sub_(w.grads, alpha=0.1)
        w.grads.zero_()


@case()
def aliases_of_numpy(w: Any) -> Training:
    w.weight, w.numbers = torch.ones(4, 3), np.zeros(6)
    w.array, w.tensor = w.weight.numpy(), torch.from_numpy(w.numbers)
    while True:
        turn = yield
        w.array += turn
        w.weight *= 1.5
        w.numbers += 1
        w.tensor *= 2


@case()
def aliases_of_numpy_that_the_loop_makes(w: Any) -> Training:
    w.weight, w.other = torch.ones(4, 3), torch.zeros(2)
    while True:
        turn = yield
        if turn == 1:
            w.array, w.row = w.weight.numpy(), w.weight.numpy()[1, ::2]
            w.numbers = np.arange(6.0).reshape(2, 3).T
            w.tensor, w.other = torch.from_numpy(w.numbers), w.other + 1
            w.first = np.arange(4.0)
            w.last = torch.from_numpy(w.first[2:])
        if turn >= 1:
            w.array += turn
            w.row *= 2
            w.tensor[0] *= 1.5
            w.numbers += 1
            w.last += 1


@case()
def tensors_that_lie_in_arrays(w: Any) -> Training:
    w.data = np.arange(30_000.0)
    while True:
        turn = yield
        if turn == 1:
            array = np.arange(6.0)
            w.one, w.other = torch.from_numpy(array), torch.from_numpy(array[2:4])
            w.batch = torch.from_numpy(w.data[10:20])
            w.late = np.arange(5.0)
            w.inside = torch.from_numpy(w.late[1:3])
        if turn >= 1:
            w.one += 1
            w.other *= 2
            w.inside += 3
        if turn == 4:
            w.batch += 1


@case()
def tensors_of_overlapping_arrays_that_nothing_changes(w: Any) -> Training:
    data = np.arange(24.0).reshape(2, 12)
    w.inputs, w.targets, w.last = (torch.from_numpy(data[:, start : start + 10]) for start in (0, 1, 2))
    while True:
        yield
        w.loss = float((w.inputs - w.targets).square().sum())


@case(lost=("targets (memory: a part of it is also that of inputs)",), is_refused=True)
def tensors_of_overlapping_arrays(w: Any) -> Training:
    data = np.arange(24.0).reshape(2, 12)
    w.inputs, w.targets = torch.from_numpy(data[:, :-1]), torch.from_numpy(data[:, 1:])
    while True:
        yield
        w.targets += 1


@case(lost=("first (memory: a part of it is also that of bytes)",), is_refused=True)
def tensors_that_lie_in_bytes(w: Any) -> Training:
    w.bytes = bytearray(b"abcdefgh")
    while True:
        yield
        w.first = torch.frombuffer(w.bytes, dtype=torch.uint8, offset=2)
        w.first += 1


@case()
def values_of_many_dtypes(w: Any) -> Training:
    kinds = (
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.uint16,
        torch.bool,
    )
    w.values = {str(kind): torch.ones(3).to(kind) for kind in (*kinds, torch.complex64, torch.complex32, torch.complex128)}
    while True:
        turn = yield
        for name, value in w.values.items():
            if turn % 2:
                w.values[name] = batch(turn, 3).abs().to(value.dtype)
            else:
                value.copy_(batch(turn, 3).abs().to(value.dtype))


@case()
def bits_of_conjugates_and_negatives(w: Any) -> Training:
    w.z = torch.tensor([1 + 2j, 3 - 1j])
    w.conj, w.imag = w.z.conj(), w.z.conj().imag
    w.p = nn.Parameter(w.z.clone().conj())
    while True:
        turn = yield
        w.z.mul_(1j)
        w.late = w.z.conj()
        w.low = w.late.imag
        w.real = torch.view_as_real(w.z)
        w.p.data = w.p.data.conj() * 2 if turn % 2 else (w.p.data + 1).conj()


@case()
def replay_buffers(w: Any) -> Training:
    w.past, w.ring, w.at = deque(maxlen=4), torch.zeros(4, 3), 0
    w.by_key = {"x": [torch.zeros(1)]}
    while True:
        turn = yield
        w.past.append((batch(turn)[0], turn, {"done": torch.tensor(turn > 2)}))
        w.ring[w.at % 4] = batch(turn)[1]
        w.at += 1
        w.by_key["x"].append(w.ring[w.at % 4])


@case()
def generators_that_are_shared(w: Any) -> Training:
    w.generator = torch.Generator().manual_seed(3)
    w.sampler = torch.utils.data.RandomSampler(range(5), generator=w.generator)
    w.order = []
    while True:
        turn = yield
        w.order.append(list(w.sampler))
        w.noise = torch.randn(2, generator=w.generator) + torch.randn(2)
        if turn == 1:
            w.late = torch.Generator().manual_seed(4)
        if turn >= 1:
            w.more = torch.rand(1, generator=w.late)


@case()
def views_whose_base_is_written_with_gradients(w: Any) -> Training:
    w.weight, w.base = torch.ones(3, requires_grad=True), torch.zeros(2, 3)
    w.row, w.lost = w.base[0], None
    while True:
        turn = yield
        if turn == 1:
            w.base = torch.zeros(2, 3)
            w.row = w.base[1]
        if turn == 4:
            w.row.copy_(w.weight * 2)
            (w.base * 3).sum().backward()


@case()
def storages_of_tensors(w: Any) -> Training:
    w.tensor = torch.arange(4.0)
    w.storage = w.tensor.untyped_storage()
    while True:
        turn = yield
        w.storage[0] = turn
        w.tensor[1] += 1
        if turn == 1:
            w.late = w.tensor.untyped_storage()


@case()
def a_storage_that_no_tensor_uses(w: Any) -> Training:
    w.alone = torch.arange(3.0).untyped_storage()
    while True:
        turn = yield
        w.alone[1] = turn


@case()
def an_object_of_every_small_kind(w: Any) -> Training:
    w.kinds = []
    while True:
        turn = yield
        w.kinds += [
            torch.float32,
            torch.device("cpu"),
            torch.Size([1, 2]),
            torch.strided,
            torch.channels_last,
            torch.per_tensor_affine,
        ]
        w.normal = torch.distributions.Normal(torch.zeros(1), torch.ones(1) * (turn + 1))
        w.drawn = w.normal.sample()
        w.info = torch.finfo(torch.float32)


@case()
def a_resized_tensor(w: Any) -> Training:
    w.tensor, w.grown = torch.ones(3), torch.ones(3)
    w.view = w.tensor[1:]
    while True:
        turn = yield
        w.tensor.add_(1)
        if turn == 1:
            w.grown.resize_(5).fill_(2.0)
        if turn == 2:
            w.grown.set_(w.tensor)


class Kept(nn.Module):
    """A model whose class holds tensors."""

    seen = torch.zeros(2)
    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Kept.seen = Kept.seen + x.detach().sum()
        Kept.count += 1
        return x * Kept.count


@case()
def tensors_that_a_class_holds(w: Any) -> Training:
    Kept.seen, Kept.count = torch.zeros(2), 0
    w.model, w.kind = Kept(), Kept
    w.buffer = nn.Buffer(torch.zeros(2), persistent=False)
    while True:
        turn = yield
        w.out = w.model(batch(turn))
        w.buffer += 1
        w.new, w.late = nn.Buffer(w.buffer + 1), nn.Parameter(torch.ones(2), requires_grad=turn % 2 == 0)
        w.seen, w.count = w.kind.seen, w.kind.count


@case()
def what_functions_return(w: Any) -> Training:
    w.best = batch(0).max(0)
    w.model = nn.GRU(3, 2)
    while True:
        turn = yield
        w.best, w.sorted = batch(turn).max(0), batch(turn).sort()
        w.packed = nn.utils.rnn.pack_sequence([batch(turn, 3, 3), batch(turn + 9, 2, 3)])
        w.out = w.model(w.packed)[1].detach()


@case()
def a_tensor_whose_memory_is_let_go_of(w: Any) -> Training:
    w.weight, w.full = torch.ones(4), torch.ones(4)
    while True:
        turn = yield
        if turn == 2:
            w.weight.untyped_storage().resize_(0)
        if turn == 4:
            w.weight.untyped_storage().resize_(16)
            w.weight.copy_(w.full)
        w.full += 1


@case()
def a_model_of_float64_with_descent(w: Any) -> Training:
    w.model = nn.Linear(3, 2).double()
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        if turn == 1:
            w.model.float()
        if turn >= 1:
            descend(w, turn)
