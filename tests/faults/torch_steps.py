"""Steps of PyTorch of all kinds, each tried with faults: run by test_torch in a process of its own, which it changes.
Prints {name of the test: traceback, or null} as JSON.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from detrain.adapters.torch.compiler.history import History
from detrain.adapters.torch.faults import injector
from detrain.adapters.torch.faults.instruments import TorchInstruments
from detrain.adapters.torch.named_objects import NamedObjects
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DTYPES
from detrain.faults.drawing import draw_injection, injection
from detrain.faults.experiment import Experiment, Firing, Injection
from detrain.faults.models import model_named
from detrain.faults.plan import Kind, Operand, Plan, trial_rng
from detrain.faults.sites import Site, select
from detrain.runtime.observers.experiment_run import ExperimentRun
from tests.faults.torch_by_hand import instruments, print_wrong


def sites_of(step: Callable[[], object]) -> list[Site]:
    """Return the sites of a step."""
    instruments.begin_step()
    step()
    return instruments.sites()


def one_set(site: Site, position: int, number: float, operand: str = "output") -> Injection:
    """Return an injection that sets one element to a number."""
    patterns = DTYPES[site.operands[operand].dtype].patterns([number])
    return injection(site, Plan(np.array([position]), Kind.SET, patterns), Operand(operand), 0)


def hit(step: Callable[[], Any], what: Injection, occurrence: int = 0) -> tuple[Any, Firing]:
    """Return the result of a step with a fault in it, and the record of its firing."""
    instruments.select(what)
    instruments.arm(occurrence)
    result = step()
    instruments.disarm()
    firing = instruments.firing()
    assert firing is not None, "not fired"
    assert firing.misfits == 0, "another shape"
    return result, firing


class Put(torch.autograd.Function):
    """A function that sets one element; its gradient is that of the identity."""

    @staticmethod
    def forward(_context: Any, value: Any, position: int, number: float) -> Any:
        value = value.clone()
        value.view(-1)[position] = number
        return value

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:
        return gradient, None, None


def same(one: Any, other: Any) -> None:
    """Fail unless tensors are equal bit for bit."""
    for first, second in zip(one, other, strict=True):
        assert first.shape == second.shape
        assert first.detach().numpy().tobytes() == second.detach().numpy().tobytes(), (first, second)


def a_recurrent_cell() -> None:
    """A cell called in a loop runs its sites once a turn; a fault in one turn acts as in a cell written out."""
    torch.manual_seed(2)
    cell, rows, start = nn.GRUCell(3, 4), torch.randn(3, 2, 3), torch.randn(2, 4)

    def step() -> list[Any]:
        cell.zero_grad()
        state = start
        for row in rows:
            state = cell(row, state)
        state.square().sum().backward()
        return [each.grad.clone() for each in cell.parameters()]

    def by_hand(turn: int) -> list[Any]:
        cell.zero_grad()
        state = start
        for number, row in enumerate(rows):
            given = functional.linear(row, cell.weight_ih, cell.bias_ih)
            if number == turn:
                given = Put.apply(given, 5, 0.75)
            kept = functional.linear(state, cell.weight_hh, cell.bias_hh)
            one, two = given.chunk(3, 1), kept.chunk(3, 1)
            reset, update = (one[0] + two[0]).sigmoid(), (one[1] + two[1]).sigmoid()
            new = (one[2] + two[2] * reset).tanh()
            state = (state - new) * update + new
        state.square().sum().backward()
        return [each.grad.clone() for each in cell.parameters()]

    found = {site.name: site for site in sites_of(step)}
    site = found["forward/cell/addmm"]
    assert (site.executions, found["backward/cell/mm"].executions) == (3, 3)
    same(step(), by_hand(-1))
    for turn in range(3):
        same(hit(step, one_set(site, 5, 0.75), turn)[0], by_hand(turn))


def gradients_that_are_gathered() -> None:
    """A model that is called twice in a step has each site once, which runs twice."""
    torch.manual_seed(3)
    model, rows = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(2, 5, 3)

    def step() -> list[Any]:
        model.zero_grad()
        for part in rows:
            model(part).sum().backward()
        return [each.grad.clone() for each in model.parameters()]

    def by_hand(turn: int) -> list[Any]:
        model.zero_grad()
        for number, part in enumerate(rows):
            given = model[0](part)
            model[1](Put.apply(given, 7, -3.0) if number == turn else given).sum().backward()
        return [each.grad.clone() for each in model.parameters()]

    found = {site.name: site for site in sites_of(step)}
    site = found["forward/model.0/addmm"]
    assert site.executions == 2
    assert found["backward/model.0/add_"].stage == "backward", "what adds to a gradient is of the weight's module"
    for turn in range(2):
        same(hit(step, one_set(site, 7, -3.0), turn)[0], by_hand(turn))


def blocks_that_are_computed_again() -> None:
    """Ops that the backward pass computes again count as forward, as the second run of their sites."""
    torch.manual_seed(4)
    block, rows = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3, requires_grad=True)
    for is_reentrant in (False, True):

        def step(is_reentrant: bool = is_reentrant) -> list[Any]:
            block.zero_grad()
            checkpoint(block, rows, use_reentrant=is_reentrant).sum().backward()
            return [each.grad.clone() for each in block.parameters()]

        found = {site.name: site for site in sites_of(step)}
        assert found["forward/block.0/addmm"].executions == 2, found.keys()
        assert found["backward/block.0/mm"].stage == "backward"
        # The gradient uses only one value of the second run: the output of tanh.
        block.zero_grad()
        inner = Put.apply(block[0](rows), 2, 0.5) if is_reentrant else None
        if inner is not None:
            torch.tanh(inner).sum().backward()
            same(hit(step, one_set(found["forward/block.0/addmm"], 2, 0.5), 1)[0], [each.grad for each in block.parameters()])


def updates_by_hand() -> None:
    """Without an optimizer, ops on gradients are the update; later ops with the new weights count as forward."""
    weight, rows = torch.randn(3, 2, requires_grad=True), torch.randn(4, 3)

    def step() -> Any:
        (rows @ weight).square().mean().backward()
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
            weight.grad = None
        return (rows @ weight).sum()

    stages = [(site.name, site.stage) for site in sites_of(step) if site.op in ("mm", "mul", "sub_")]
    assert stages[0] == ("forward/mm", "forward")
    assert ("optimizer/mul", "optimizer") in stages
    assert ("optimizer/sub_", "optimizer") in stages
    assert stages[-1] == ("forward/mm#1", "forward")


def gradients_of_products() -> None:
    """A product's two gradients are distinguished, even if PyTorch exchanges the factors."""
    torch.manual_seed(5)
    model, rows = nn.Linear(3, 4, bias=False), torch.randn(5, 3, requires_grad=True)
    found = {site.name: site for site in sites_of(lambda: model(rows).square().sum().backward())}
    by_role = {site.role: site for site in found.values() if site.stage == "backward" and site.op == "mm"}
    assert {role: {name: each.shape for name, each in site.operands.items()} for role, site in by_role.items()} == {
        "grad_in": {"input": (5, 4), "weight": (4, 3), "output": (5, 3)},
        "grad_wt": {"input": (5, 3), "weight": (4, 5), "output": (4, 3)},
    }
    assert by_role["grad_wt"].is_turned
    assert not by_role["grad_in"].is_turned
    assert [site.label for site in select(list(found.values()), "model_grad_wt")] == ["model_grad_wt"]


class Product(torch.autograd.Function):
    """A function of the program's own."""

    @staticmethod
    def forward(context: Any, rows: Any, weight: Any) -> Any:
        context.save_for_backward(rows, weight)
        context.variable = 3  # a name that PyTorch's own functions have, too
        return rows @ weight

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        rows, weight = context.saved_tensors
        return gradient @ weight.t(), rows.t() @ gradient


class Own(nn.Module):
    """A module with such a function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, rows: Any) -> Any:
        return Product.apply(rows, self.weight)


def functions_of_the_programs_own() -> None:
    """The ops of their gradients are of the module that calls them, and have roles; hooks change nothing of that."""
    net, rows = Own(), torch.randn(4, 3, requires_grad=True)
    net.register_full_backward_hook(lambda *_: None)

    def step() -> None:
        result = net(rows * 2)
        result.register_hook(lambda gradient: gradient * 2)
        result.sum().backward()

    found = {site.name: site.role for site in sites_of(step) if site.op == "mm"}
    assert found == {"forward/net/mm": "", "backward/net/mm": "grad_in", "backward/net/mm#1": "grad_wt"}


def ops_that_do_not_repeat() -> None:
    """A fault in an operand of such an op is undefined: it is not put in, and the step ends with the reason."""
    model, rows = nn.Linear(3, 2), torch.ones(4, 3)
    site = next(site for site in sites_of(lambda: model(rows).sum().backward()) if site.op == "addmm")
    plain = model(rows)
    is_same, injector._is_same = injector._is_same, lambda *_: False
    instruments.select(one_set(site, 1, 2.0, "weight"))
    instruments.arm(0)
    same([model(rows)], [plain])
    with pytest.raises(FaultInvalid, match="other bits when it is run once more"):
        instruments.disarm()
    injector._is_same = is_same


def gradients_of_functions() -> None:
    """With `torch.func`, names, stages and roles are the same, and a fault acts as in the plain step."""
    torch.manual_seed(9)
    net, rows, target = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3), torch.randn(5, 2)

    def loss(parameters: Any, rows: Any, target: Any) -> Any:
        return (torch.func.functional_call(net, parameters, (rows,)) - target).square().mean()

    def step() -> list[Any]:
        detached = {name: each.detach() for name, each in net.named_parameters()}
        return list(torch.func.grad(loss)(detached, rows, target).values())

    def plain() -> list[Any]:
        net.zero_grad()
        (net(rows) - target).square().mean().backward()
        return [each.grad.clone() for each in net.parameters()]

    one, other = ({site.name: site for site in sites_of(each)} for each in (step, plain))
    assert [name for name in one if "net" in name] == [name for name in other if "net" in name]
    for name in ("forward/net.0/addmm", "backward/net.2/mm", "backward/net.2/mm#1"):
        assert one[name].role == other[name].role
        same(hit(step, one_set(one[name], 3, 0.5))[0], hit(plain, one_set(other[name], 3, 0.5))[0])
    each_row = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    of_rows = {site.op for site in sites_of(lambda: each_row(dict(net.named_parameters()), rows, target))}
    assert "bmm" in of_rows
    assert "squeeze_" not in of_rows, "a view, in place"


def tied_and_transposed_factors() -> None:
    """The parameter is the weight, whichever factor it is."""
    weight, rows = nn.Parameter(torch.randn(2, 3)), torch.randn(3, 4)
    site = next(site for site in sites_of(lambda: (weight @ rows).sum().backward()) if site.op == "mm")
    assert site.operands["weight"].shape == (2, 3)
    assert site.operands["input"].shape == (3, 4)


def operands_of_all_layouts() -> None:
    """In slices with gaps, transposed and repeated operands, the element hit is the one that a user sees there."""
    torch.manual_seed(6)
    whole, weight = torch.randn(6, 9), torch.randn(4, 2, requires_grad=True)
    given = {
        "slice": whole[1:4, 2:6],
        "every other": whole[::2, ::2][:, :4],
        "transposed": whole[:4, :3].t(),
        "repeated": whole[0, :4].expand(3, 4),
        "one row": whole[2:3, 1:5],
    }
    for name, rows in given.items():

        def step(rows: Any = rows) -> list[Any]:
            result = rows @ weight
            result.sum().backward()
            return [result.detach().clone()]

        site = next(site for site in sites_of(step) if site.op == "mm")
        before = whole.clone()
        found = hit(step, one_set(site, 3, 9.0, "input"))[0]
        plain = rows.contiguous().clone()
        plain.view(-1)[3] = 9.0
        same(found, [plain @ weight])
        assert torch.equal(whole, before), f"{name}: the operand itself was changed"
        firing = instruments.firing()
        assert firing is not None
        assert np.frombuffer(firing.golden, np.float32)[0] == rows.reshape(-1)[3].item()


def all_dtypes_keep_their_bits() -> None:
    """The patterns of a plan are put in as they are, and no other element changes: NaN payloads, zeros with a sign."""
    odd = {
        "float64": [0x7FF8 << 48 | 1, 0xFFF4 << 48 | 3, 1 << 63, 1],
        "float32": [0x7FC00001, 0xFFA00003, 0x80000000, 1],
        "float16": [0x7E01, 0xFD03, 0x8000, 1],
        "bfloat16": [0x7FC1, 0xFFA3, 0x8000, 1],
        "float8_e5m2": [0x7D, 0xFE, 0x80, 1],
        "float8_e4m3fn": [0x7F, 0xFF, 0x80, 1],
        "int32": [0x7FFFFFFF, 0x80000000, 0, 1],
        "int8": [0x7F, 0x80, 0, 1],
        "int64": [(1 << 63) - 1, 1 << 63, 0, 1],
        "uint8": [0xFF, 0x80, 0, 1],
        "bool": [1, 0, 0, 1],
    }
    placed = set()
    for name, patterns in odd.items():
        dtype = DTYPES[name]
        signed = np.array(patterns, dtype.unsigned).view(f"i{dtype.unsigned.itemsize}")
        value = torch.from_numpy(signed.copy()).view(getattr(torch, name))
        weight = torch.ones(2, requires_grad=True)

        def step(value: Any = value, weight: Any = weight) -> Any:
            weight.sum().backward()
            return torch.cat([value[2:], value[:2]])  # hands on bits as they are

        site = next(site for site in sites_of(step) if site.op == "cat")
        for model in ("BIT:7,0", "SET:1", "STUCK0:0", "STUCK1:1", "RD_CORRECT", "RD"):
            try:
                drawn = draw_injection(site, model_named(model), 0, trial_rng(1, 1))
            except FaultInvalid:  # a bool has one bit
                continue
            placed.add((name, model))
            result, firing = hit(step, drawn)
            expected = np.roll(np.array(patterns, dtype.unsigned), 2)
            places, sources = drawn.array("positions"), drawn.array("sources")
            keep, flip = (drawn.array(each).view(dtype.unsigned) for each in ("keep", "flip"))
            assert firing.golden == expected[places].tobytes()
            expected[places] = (expected[sources] & keep) ^ flip
            assert firing.injected == expected[places].tobytes()
            integers = result.view(getattr(torch, signed.dtype.name))
            assert integers.numpy().tobytes() == expected.tobytes(), (name, model)
    assert len(placed) == 6 * len(odd) - 2


def ops_in_place_and_with_out() -> None:
    """A value written into an argument is an output; views are no sites."""
    torch.manual_seed(7)
    layer, rows = nn.Linear(3, 4), torch.randn(5, 3)
    held = torch.empty(5, 4)

    def step() -> list[Any]:
        layer.zero_grad()
        result = functional.relu(layer(rows), inplace=True)
        result.sum().backward()
        with torch.no_grad():
            torch.mul(result, 2.0, out=held)
            held.add_(1.0)
        return [held.clone(), *(each.grad.clone() for each in layer.parameters())]

    found = {site.name: site for site in sites_of(step)}
    assert {"forward/relu_", "forward/mul", "forward/add_"} <= found.keys(), found.keys()
    assert not {site.op for site in found.values()} & {"t", "view", "detach", "expand", "transpose"}
    layer.zero_grad()
    result = Put.apply(layer(rows), 6, 4.0)  # autograd keeps the result of relu_: it is above 0
    given = torch.relu(result)
    given.sum().backward()
    expected = [given.detach() * 2 + 1, *(each.grad.clone() for each in layer.parameters())]
    if layer(rows).view(-1)[6] > 0:
        same(hit(step, one_set(found["forward/relu_"], 6, 4.0))[0], expected)
    plain = step()
    changed = hit(step, one_set(found["forward/mul"], 6, 4.0))[0]
    assert changed[0].view(-1)[6] == 5.0
    same(changed[1:], plain[1:])


def losses_of_steps() -> None:
    """Losses of several `backward` are added up; penalties do not count; a scaler's losses are unscaled."""
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    said = instruments
    said.series.begin()
    weight.square().sum().backward()
    (weight[0] * 10).backward()
    assert said.series.has_loss()
    assert said.series.read() == {"loss": 33.0}
    assert said.series.read() == {}
    assert not said.series.has_loss()
    inner = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)[0]
    (inner.sum() + weight[1]).backward()
    assert said.series.read() == {"loss": 3 * 4 + 3 * 9 + 3.0}
    torch.autograd.grad(weight.sum(), [weight])
    assert said.series.read() == {"loss": 5.0}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight.sum()).backward()
    assert said.series.read() == {"loss": 5.0}
    torch.func.grad(lambda value: (value * 7).sum())(torch.ones(2))
    assert said.series.read() == {"loss": 14.0}
    (weight * math.nan).sum().backward()
    assert math.isnan(said.series.read()["loss"])


def mixed_precision() -> None:
    """Ops under autocast are sites of the narrow dtype."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)

    def step() -> list[Any]:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(3, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [each.grad.clone() for each in model.parameters()]

    found = {site.name: site for site in sites_of(step)}
    site = found["forward/model.0/addmm"]
    assert {each.dtype for each in site.operands.values()} == {"bfloat16"}
    assert any(site.stage == "optimizer" for site in found.values())
    _result, firing = hit(step, one_set(site, 1, 2.5))
    assert firing.injected == DTYPES["bfloat16"].patterns([2.5]).tobytes()


class Narrow(torch.autograd.Function):
    """Rounds to eight bits, forward and backward."""

    @staticmethod
    def forward(_context: Any, value: Any) -> Any:
        return value.to(torch.float8_e4m3fn).float()

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:
        return gradient.to(torch.float8_e5m2).float()


def floats_of_eight_bits() -> None:
    """What is rounded to eight bits, forward or backward, is a site of that dtype."""
    weight = torch.randn(4, 2, requires_grad=True)
    rows = torch.arange(12.0).reshape(3, 4) / 7

    def step() -> list[Any]:
        weight.grad = None
        Narrow.apply(rows @ weight).square().sum().backward()
        return [weight.grad.clone()]

    def by_hand(forward: float | None, backward: float | None) -> list[Any]:
        product = (rows @ weight).detach().to(torch.float8_e4m3fn).float()
        if forward is not None:
            product.view(-1)[1] = forward
        gradient = (2 * product).to(torch.float8_e5m2).float()
        if backward is not None:
            gradient.view(-1)[2] = backward
        return [rows.t() @ gradient]

    found = {site.operands["output"].dtype: site for site in sites_of(step) if site.op == "_to_copy"}
    same(step(), by_hand(None, None))
    same(hit(step, one_set(found["float8_e4m3fn"], 1, 0.8125))[0], by_hand(0.8125, None))
    same(hit(step, one_set(found["float8_e5m2"], 2, -7.0))[0], by_hand(None, -7.0))


def another_shape() -> None:
    """A fault for an operand of another shape is not put in, and the record says so."""
    model = nn.Linear(3, 2)
    rows = torch.ones(4, 3)
    site = next(site for site in sites_of(lambda: model(rows).sum().backward()) if site.op == "addmm")
    instruments.select(one_set(site, 1, 2.0))
    instruments.arm(0)
    model(rows[:2]).sum().backward()
    instruments.disarm()
    firing = instruments.firing()
    assert firing is not None
    assert (firing.count, firing.misfits) == (0, 1)
    instruments.arm(1)
    model(rows).sum().backward()
    instruments.disarm()
    assert instruments.firing() == firing, "it ran once, and the second run was to be hit"


def another_op_of_the_name() -> None:
    """An optimizer's first step lacks some ops: the second sum of the next step is no site of the first."""
    model, rows = nn.Linear(3, 2), torch.ones(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)

    def step() -> None:
        model(rows).sum().backward()
        optimizer.step()

    name = "optimizer/optimizer/add_"
    first, second = ({site.name: site for site in sites_of(step)} for _ in range(2))
    assert first[name].operands == second[name].operands
    for sites, is_hit in ((first, False), (second, True)):
        instruments.select(one_set(sites[name], 1, 2.0))
        instruments.arm(0)
        step()
        instruments.disarm()
        assert (instruments.firing() is not None) == is_hit
    shared = nn.Sequential(nn.Linear(3, 3))
    shared.append(shared[0])
    again = {site.name: site for site in sites_of(lambda: shared(rows).sum().backward())}
    assert again["forward/shared.0/addmm"].executions == 2


class Counter(TorchDispatchMode):
    """A mode of the program's own that counts ops."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def nothing_else_is_changed() -> None:
    """Between steps detrain has no mode and no hook; the program's own modes count the same ops as without it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    next_id = torch.utils.hooks.RemovableHandle.next_id

    def step() -> int:
        with Counter() as counter:
            model(torch.ones(2, 3)).sum().backward()
        return counter.count

    plain = step()
    site = select(sites_of(step), "model.0", stage="forward")[0]
    assert torch._C._len_torch_dispatch_stack() == 0
    assert hit(step, one_set(site, 0, 1.0, "input"))[0] == plain
    outer = Counter()
    with outer:
        hit(step, one_set(site, 0, 1.0, "input"))
        assert torch._C._len_torch_dispatch_stack() == 1
    with outer:  # a step that an error ends
        instruments.arm(0)
        instruments.disarm()
    instruments.arm(0)
    outer.__enter__()
    instruments.disarm()
    assert torch._C._len_torch_dispatch_stack() == 1
    outer.__exit__(None, None, None)
    modules = torch.nn.modules.module
    assert not modules._global_forward_pre_hooks
    assert not modules._global_forward_hooks
    assert torch.utils.hooks.RemovableHandle.next_id == next_id


def digests_of_a_step() -> None:
    """Digests are equal in equal steps; the first one that differs belongs to the op that was hit."""
    other = TorchInstruments(ExperimentRun([Experiment(log=os.devnull, digests_at=(0, 0, 0))], dict, lambda: None), History(None))
    torch.manual_seed(8)
    model, rows = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)

    def digests(change: bool = False) -> list[tuple[str, int, int]]:
        model.zero_grad()
        other.begin_step()
        hidden = model[0](rows)
        with torch.no_grad():
            hidden.view(torch.int32)[0, 0].bitwise_xor_(1 if change else 0)
        model[2](model[1](hidden)).sum().backward()
        return other.digests()

    one, again, changed = digests(), digests(), digests(change=True)
    assert one == again
    first = next(a[0] for a, b in zip(one, changed, strict=True) if a != b)
    assert first == "forward/bitwise_xor_", first
    rows[0, 0] += 1
    first = next(a[0] for a, b in zip(one, digests(), strict=True) if a != b)
    assert first == "argument 1 of forward/model.0/addmm", first


def what_is_trained_has_names() -> None:
    """Weights, buffers, optimizers' state and the program's own tensors have their paths from names as names."""
    net = {"body": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))}
    own = [torch.ones(2, requires_grad=True), torch.zeros(2)]
    optimizer = torch.optim.Adam([*net["body"].parameters(), own[0]], 0.1)
    net["body"](torch.randn(4, 2)).sum().backward()
    own[0].sum().backward()
    optimizer.step()
    objects = NamedObjects()

    def trained() -> dict[str, Any]:
        objects.look()
        return objects.tensors()

    before = {key: array.tobytes() for key, array in trained().items()}
    names = {key.partition(" ")[0] for key in before}
    assert {"net.body.0.weight", "net.body.1.running_mean", "net.body.1.num_batches_tracked"} <= names, names
    assert {"optimizer.state.0.exp_avg", "optimizer.state.4.exp_avg_sq", "own.0"} <= names, names
    with torch.no_grad():
        for tensor in (net["body"][1].running_var, own[0], optimizer.state[own[0]]["exp_avg"]):
            tensor.view(torch.int32)[0] ^= 1
    after = {key: array.tobytes() for key, array in trained().items()}
    changed = {key.partition(" ")[0] for key in before if before[key] != after[key]}
    assert changed == {"net.body.1.running_var", "own.0", "optimizer.state.4.exp_avg"}, changed
    del net, own, optimizer


TRIED = [
    a_recurrent_cell,
    gradients_that_are_gathered,
    blocks_that_are_computed_again,
    updates_by_hand,
    gradients_of_products,
    functions_of_the_programs_own,
    ops_that_do_not_repeat,
    gradients_of_functions,
    tied_and_transposed_factors,
    operands_of_all_layouts,
    all_dtypes_keep_their_bits,
    ops_in_place_and_with_out,
    losses_of_steps,
    mixed_precision,
    floats_of_eight_bits,
    another_shape,
    another_op_of_the_name,
    nothing_else_is_changed,
    digests_of_a_step,
    what_is_trained_has_names,
]


if __name__ == "__main__":
    print_wrong(TRIED)
