"""Steps of PyTorch computed by hand, op after op and without autograd, faults put in by NumPy; and the same steps as
programs write them, with the faults put in by the adapter. Run by test_torch_faults in a process of its own, which it
changes: prints the differences by step, and counts of the trials, as JSON.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from detrain.adapters.api import Settings
from detrain.adapters.torch.adapter import Torch
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import BITS, Injection
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import trial_rng
from detrain.python.process.random_streams import Streams
from tests.adapters.trial import Trial

aten = torch.ops.aten
Tensors = dict[str, Any]


@dataclass
class ByHand:
    """A runner of ops, each under the name that its site should have; it puts faults in."""

    injections: Sequence[Injection] = ()

    def __post_init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.names: list[str] = []
        self.golden = self.injected = b""

    def __call__(self, name: str, func: Any, *args: Any, writes: Sequence[Any] = (), **kwargs: Any) -> Any:
        turn = self.turns[name] = self.turns.get(name, -1) + 1
        site = f"{name}#{turn}" if turn else name
        result = func(*args, **kwargs)
        outputs = [*(result if isinstance(result, tuple | list) else [] if result is None else [result]), *writes]
        for number, output in enumerate(outputs):
            if output is None or str(output.dtype).removeprefix("torch.") not in BITS:
                continue
            each = f"{site}:{number}" if number else site
            self.names.append(each)
            for injection in self.injections:
                if injection.site == each:
                    self.hit(injection, output, number, func, args, kwargs)
        return result

    def hit(self, injection: Injection, output: Any, number: int, func: Any, args: Sequence[Any], kwargs: Any) -> None:
        if injection.operand == "output":
            write(output, self.changed(injection, output))
            return
        operand = args[injection.index or 0]
        faulty = torch.empty_strided(operand.shape, operand.stride())
        write(faulty, self.changed(injection, operand))
        again = func(*(faulty if place == (injection.index or 0) else each for place, each in enumerate(args)), **kwargs)
        values = (again[number] if isinstance(again, tuple) else again).numpy().copy()
        seen = injection.array("limited")
        if seen.size:
            mixed = output.numpy().copy()
            for place in seen:
                index = np.unravel_index(place, mixed.shape)
                mixed[index] = values[index]
            values = mixed
        write(output, values)

    def changed(self, injection: Injection, tensor: Any) -> Any:
        values = np.ascontiguousarray(tensor.detach().numpy()).copy()
        width = np.dtype(f"u{values.itemsize}")
        bits, most = values.reshape(-1).view(width), (1 << 8 * values.itemsize) - 1
        before = bits.copy()
        arrays = [injection.array(name) for name in ("positions", "sources", "keep", "flip")]
        for position, source, keep, flip in zip(*arrays, strict=True):
            bits[position] = (int(before[source]) & (int(keep) & most)) ^ (int(flip) & most)
        self.golden, self.injected = before[arrays[0]].tobytes(), bits[arrays[0]].tobytes()
        return bits.view(values.dtype).reshape(tuple(tensor.shape))


def write(tensor: Any, values: Any) -> None:
    """Write values bit for bit, whatever the strides."""
    width = np.dtype(f"u{tensor.element_size()}")
    at = tensor.detach().numpy()
    np.copyto(
        at.reshape(1).view(width) if not at.ndim else at.view(width),
        np.ascontiguousarray(values).view(width).reshape(at.shape or 1),
    )


@dataclass
class Step:
    """One training step: `make` returns its tensors; `program` runs it as programs do, `by_hand` op after op."""

    make: Callable[[], Any]
    program: Callable[[Any], None]
    by_hand: Callable[[Any, ByHand], None]
    state: Callable[[Any], Tensors]


# Images: convolution with stride and padding, batch normalisation, relu, a linear layer, cross-entropy, SGD.


class Images:
    def __init__(self, *, foreach: bool = False, is_last: bool = False, is_plain: bool = False) -> None:
        """`is_plain`: without batch normalisation and without momentum."""
        torch.manual_seed(5)
        self.is_foreach, self.is_plain = foreach, is_plain
        norm = [] if is_plain else [nn.BatchNorm2d(16)]
        self.model = nn.Sequential(
            nn.Conv2d(4, 16, 3, 2, 1), *norm, nn.ReLU(), nn.Conv2d(16, 16, 2), nn.Flatten(), nn.Linear(64, 7)
        )
        self.run: Any = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.0 if is_plain else 0.9, foreach=foreach)
        self.images, self.labels = torch.randn(5, 4, 6, 6), torch.tensor([1, 0, 6, 3, 3])
        if is_last:
            self.model, self.images = (each.to(memory_format=torch.channels_last) for each in (self.model, self.images))
        for parameter in () if is_plain else self.model.parameters():  # not the first step: there are buffers of the momentum
            self.optimizer.state[parameter]["momentum_buffer"] = torch.randn(parameter.shape).view_as(parameter)
            if is_last and parameter.dim() == 4:
                buffer = self.optimizer.state[parameter]["momentum_buffer"]
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.to(memory_format=torch.channels_last)


def image_step(it: Images) -> None:
    run, optimizer = it.run, it.optimizer
    functional.cross_entropy(run(it.images), it.labels).backward()
    optimizer.step()


def image_step_by_hand(it: Images, op: ByHand) -> None:
    conv, *norms, relu, other, _flat, linear = it.model
    forward, backward, one = "forward/it.model", "backward/it.model", [1, 1]
    relu, last, head = (list(it.model).index(each) for each in (relu, other, linear))
    y = op(f"{forward}.0/convolution", aten.convolution, it.images, conv.weight, conv.bias, [2, 2], one, one, False, [0, 0], 1)
    z = y
    for norm in norms:
        op(f"{forward}.1/add_", aten.add_, norm.num_batches_tracked, 1)
        # The adapter counts the two tensors that batch normalisation writes as its fourth and fifth results.
        running = [norm.running_mean, norm.running_var]
        z, mean, factor = op(
            f"{forward}.1/native_batch_norm",
            aten.native_batch_norm, y, norm.weight, norm.bias, *running, True, 0.1, 1e-5, writes=running,
        )  # fmt: skip
    r = op(f"{forward}.{relu}/relu", aten.relu, z)
    v = op(f"{forward}.{last}/convolution", aten.convolution, r, other.weight, other.bias, one, [0, 0], one, False, [0, 0], 1)
    flat = aten.view(v.contiguous(), [5, 64])
    o = op(f"{forward}.{head}/addmm", aten.addmm, linear.bias, flat, linear.weight.t())
    s = op("forward/_log_softmax", aten._log_softmax, o, 1, False)
    _loss, weight = op("forward/nll_loss_forward", aten.nll_loss_forward, s, it.labels, None, 1, -100)
    ds = op("backward/nll_loss_backward", aten.nll_loss_backward, torch.ones(()), s, it.labels, None, 1, -100, weight)
    do = op("backward/_log_softmax_backward_data", aten._log_softmax_backward_data, ds, s, 1, torch.float32)
    dflat = op(f"{backward}.{head}/mm", aten.mm, do, linear.weight.t().t())
    dw5 = op(f"{backward}.{head}/mm", aten.mm, do.t(), flat)
    db5 = op(f"{backward}.{head}/sum", aten.sum, do, [0], True)
    dv = aten.view(dflat, list(v.shape))
    dr, dw3, db3 = op(
        f"{backward}.{last}/convolution_backward",
        aten.convolution_backward, dv, r, other.weight, [16], one, [0, 0], one, False, [0, 0], 1, [True] * 3,
    )  # fmt: skip
    dy = op(f"{backward}.{relu}/threshold_backward", aten.threshold_backward, dr, r, 0)
    of_norm = []
    for norm in norms:
        dy, *of_norm = op(
            f"{backward}.1/native_batch_norm_backward",
            aten.native_batch_norm_backward, dy, y, norm.weight, *running, mean, factor, True, 1e-5, [True] * 3,
        )  # fmt: skip
    _dx, dw0, db0 = op(
        f"{backward}.0/convolution_backward",
        aten.convolution_backward, dy, it.images, conv.weight, [16], [2, 2], one, one, False, [0, 0], 1, [False, True, True],
    )  # fmt: skip
    gradients = [dw0, db0, *of_norm, dw3, db3, dw5, aten.view(db5, [7])]
    parameters = list(it.model.parameters())
    if it.is_plain:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            op("optimizer/it.optimizer/add_", aten.add_, parameter, gradient, alpha=-0.1)
        return
    buffers = [it.optimizer.state[each]["momentum_buffer"] for each in parameters]
    if it.is_foreach:
        op("optimizer/it.optimizer/_foreach_mul_", aten._foreach_mul_, buffers, 0.9, writes=buffers)
        op("optimizer/it.optimizer/_foreach_add_", aten._foreach_add_, buffers, gradients, alpha=1, writes=buffers)
        op("optimizer/it.optimizer/_foreach_add_", aten._foreach_add_, parameters, buffers, alpha=-0.1, writes=parameters)
        return
    for parameter, gradient, buffer in zip(parameters, gradients, buffers, strict=True):
        op("optimizer/it.optimizer/mul_", aten.mul_, buffer, 0.9)
        op("optimizer/it.optimizer/add_", aten.add_, buffer, gradient, alpha=1)
        op("optimizer/it.optimizer/add_", aten.add_, parameter, buffer, alpha=-0.1)


# Words: embedding, layer normalisation, products of matrices with a softmax between, tanh, mse, AdamW.


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.mix = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 48, bias=False)

    def forward(self, tokens: Any) -> Any:
        query, key, value = self.mix(self.norm(self.words(tokens))).chunk(3, -1)
        return torch.tanh(torch.softmax(query @ key.transpose(1, 2), -1) @ value)


class Words:
    def __init__(self, how: str) -> None:
        torch.manual_seed(6)
        self.net, self.how = Attention(), how
        kinds = {"for": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.01, **kinds[how])
        self.tokens, self.target = torch.randint(0, 11, (3, 4)), torch.randn(3, 4, 16)
        for parameter in self.net.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(3.0), "exp_avg": torch.randn(parameter.shape), "exp_avg_sq": torch.rand(parameter.shape)
            }  # fmt: skip


def word_step(it: Words) -> None:
    net, optimizer = it.net, it.optimizer
    functional.mse_loss(net(it.tokens), it.target).backward()
    optimizer.step()


def word_step_by_hand(it: Words, op: ByHand) -> None:
    net, last = it.net, torch.float32
    h = op("forward/it.net.words/embedding", aten.embedding, net.words.weight, it.tokens)
    n, mean, factor = op(
        "forward/it.net.norm/native_layer_norm", aten.native_layer_norm, h, [16], net.norm.weight, net.norm.bias, 1e-5
    )
    flat = n.view(12, 16)
    m = op("forward/it.net.mix/mm", aten.mm, flat, net.mix.weight.t())
    query, key, value = m.view(3, 4, 48).split(16, -1)
    a = op("forward/it.net/bmm", aten.bmm, query, key.transpose(1, 2))
    p = op("forward/it.net/_softmax", aten._softmax, a, -1, False)
    o = op("forward/it.net/bmm", aten.bmm, p, value)
    t = op("forward/it.net/tanh", aten.tanh, o)
    op("forward/mse_loss", aten.mse_loss, t, it.target)
    dt = op("backward/mse_loss_backward", aten.mse_loss_backward, torch.ones(()), t, it.target, 1)
    do = op("backward/it.net/tanh_backward", aten.tanh_backward, dt, t)
    dvalue = op("backward/it.net/bmm", aten.bmm, p.transpose(1, 2), do)
    dp = op("backward/it.net/bmm", aten.bmm, do, value.transpose(1, 2))
    da = op("backward/it.net/_softmax_backward_data", aten._softmax_backward_data, dp, p, -1, last)
    dkey = op("backward/it.net/bmm", aten.bmm, query.transpose(1, 2), da)
    dquery = op("backward/it.net/bmm", aten.bmm, da, key.transpose(1, 2).transpose(1, 2))
    dm = op("backward/it.net/cat", aten.cat, [dquery, dkey.transpose(1, 2), dvalue], 2).view(12, 48)
    dw = op("backward/it.net.mix/mm", aten.mm, dm.t(), flat)
    dflat = op("backward/it.net.mix/mm", aten.mm, dm, net.mix.weight.t().t())
    dh, dg, db = op(
        "backward/it.net.norm/native_layer_norm_backward",
        aten.native_layer_norm_backward, dflat.view(3, 4, 16), h, [16], mean, factor, net.norm.weight, net.norm.bias, [True] * 3,
    )  # fmt: skip
    de = op("backward/it.net.words/embedding_dense_backward", aten.embedding_dense_backward, dh, it.tokens, 11, -1, False)
    parameters, gradients = list(net.parameters()), [de, dg, db, dw]
    kept = [it.optimizer.state[each] for each in parameters]
    steps, first, second = ([each[name] for each in kept] for name in ("step", "exp_avg", "exp_avg_sq"))
    name = "optimizer/it.optimizer"
    if it.how == "fused":
        op(f"{name}/_foreach_add_", aten._foreach_add_, steps, 1, writes=steps)
        op(
            f"{name}/_fused_adamw_", aten._fused_adamw_, parameters, gradients, first, second, [], steps,
            lr=0.01, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
            writes=[*parameters, *gradients, *first, *second],
        )  # fmt: skip
        return
    if it.how == "foreach":
        op(f"{name}/_foreach_add_", aten._foreach_add_, steps, torch.tensor(1.0), alpha=1.0, writes=steps)
        op(f"{name}/_foreach_mul_", aten._foreach_mul_, parameters, 1 - 0.01 * 0.01, writes=parameters)
        op(f"{name}/_foreach_lerp_", aten._foreach_lerp_, first, gradients, 1 - 0.9, writes=first)
        op(f"{name}/_foreach_mul_", aten._foreach_mul_, second, 0.999, writes=second)
        op(f"{name}/_foreach_addcmul_", aten._foreach_addcmul_, second, gradients, gradients, 1 - 0.999, writes=second)
        counts = [float(each) for each in steps]
        roots = op(f"{name}/_foreach_sqrt", aten._foreach_sqrt, second)
        op(f"{name}/_foreach_div_", aten._foreach_div_, roots, [(1 - 0.999**count) ** 0.5 for count in counts], writes=roots)
        op(f"{name}/_foreach_add_", aten._foreach_add_, roots, 1e-8, writes=roots)
        sizes = [(0.01 / (1 - 0.9**count)) * -1 for count in counts]
        op(f"{name}/_foreach_addcdiv_", aten._foreach_addcdiv_, parameters, first, roots, sizes, writes=parameters)
        return
    for parameter, gradient, step, one, two in zip(parameters, gradients, steps, first, second, strict=True):
        op(f"{name}/add_", aten.add_, step, 1)
        op(f"{name}/mul_", aten.mul_, parameter, 1 - 0.01 * 0.01)
        op(f"{name}/lerp_", aten.lerp_, one, gradient, 1 - 0.9)
        op(f"{name}/mul_", aten.mul_, two, 0.999)
        op(f"{name}/addcmul_", aten.addcmul_, two, gradient, gradient, value=1 - 0.999)
        count = float(step)
        root = op(f"{name}/sqrt", aten.sqrt, two)
        scaled = op(f"{name}/div", aten.div, root, (1 - 0.999**count) ** 0.5)
        op(f"{name}/add_", aten.add_, scaled, 1e-8)
        op(f"{name}/addcdiv_", aten.addcdiv_, parameter, one, scaled, value=-(0.01 / (1 - 0.9**count)))


def image_state(it: Images) -> Tensors:
    parameters = () if it.is_plain else it.model.named_parameters()
    kept = {f"momentum {n}": it.optimizer.state[p]["momentum_buffer"] for n, p in parameters}
    return {**it.model.state_dict(), **kept}


def word_state(it: Words) -> Tensors:
    return {
        **it.net.state_dict(),
        **{f"{k} {n}": v for n, p in it.net.named_parameters() for k, v in it.optimizer.state[p].items()},
    }


STEPS: dict[str, Step] = {
    "images, SGD": Step(Images, image_step, image_step_by_hand, image_state),
    "images, channels last, SGD of all at once": Step(
        lambda: Images(foreach=True, is_last=True), image_step, image_step_by_hand, image_state
    ),
    **{
        f"words, AdamW {how}": Step(lambda how=how: Words(how), word_step, word_step_by_hand, word_state)  # type: ignore[misc]
        for how in ("for", "foreach", "fused")
    },
}


def bits(state: Tensors) -> dict[str, bytes]:
    """Return values as bytes, row-major."""
    return {name: np.ascontiguousarray(value.detach().numpy()).tobytes() for name, value in state.items()}


def run_by_hand(step: Step, *injections: Injection) -> tuple[dict[str, bytes], ByHand]:
    it, op = step.make(), ByHand(injections)
    try:
        with torch.no_grad():
            step.by_hand(it, op)
    except (ArithmeticError, RuntimeError) as error:  # PyTorch computes with a count of steps that the fault changed
        return {"raised": type(error).__name__.encode()}, op
    return bits(step.state(it)), op


def run_program(step: Step, *injections: Injection) -> dict[str, bytes]:
    it = step.make()
    if injections:
        instruments.select(injections[0], [(other, 0) for other in injections[1:]])
        instruments.arm(0)
    try:
        step.program(it)
    except (ArithmeticError, RuntimeError) as error:
        return {"raised": type(error).__name__.encode()}
    finally:
        if injections:
            instruments.disarm()
    return bits(step.state(it))


def tried(name: str, step: Step, models: Sequence[str], *, every: int) -> Iterator[str]:
    """Yield the differences at each site with each model that fits it; `every`: with one of so many, by turns."""
    golden = run_program(step)
    it = step.make()
    instruments.begin_step()
    step.program(it)
    sites = [site for site in instruments.sites() if site.op not in ("load", "copy_", "_local_scalar_dense")]  # of torch_stores
    del it  # else the next one would have another name
    by_hand, op = run_by_hand(step)
    if by_hand != golden:
        yield f"by hand the step is another: {[key for key in golden if golden[key] != by_hand[key]]}"
        return
    if [site.name for site in sites] != op.names:
        yield f"sites: {[each.name for each in sites]}, by hand {op.names}"
        return
    counts[name] = 0
    for number, site in enumerate(sites):
        for model in models[number % every :: every]:
            try:
                injection = draw_injection(site, PUBLISHED[model], 0, trial_rng(number, 3))
            except FaultInvalid:
                continue
            counts[name] += 1
            used.add(model)
            expected, op = run_by_hand(step, injection)
            found = run_program(step, injection)
            firing = instruments.firing()
            if firing is None or (firing.count, firing.golden, firing.injected) != (1, op.golden, op.injected):
                yield f"{site.name} {model}: the record is another"
            if found != expected:
                yield f"{site.name} {model}: {[key for key in found if found[key] != expected.get(key)]}"


counts: dict[str, int] = {}
used: set[str] = set()
trial = Trial()
adapter = Torch(Settings(seed=1, threads=1, experiment=trial), Streams())
instruments: Any = trial.instruments


def follow_compiled() -> None:
    """Import the modules of PyTorch that compile, and report them to the adapter."""
    for module in ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.codecache"):
        __import__(module)
        adapter.on_import(module)


def print_wrong(tried: Sequence[Callable[[], None]]) -> None:
    """Try functions, and print their tracebacks, or null, by name as JSON."""
    found: dict[str, str | None] = {}
    for each in tried:
        try:
            each()
            found[each.__name__] = None
        except Exception:
            found[each.__name__] = traceback.format_exc()
    print(json.dumps(found))


def main(every: str) -> None:
    """Try all steps."""
    found = {name: list(tried(name, step, list(PUBLISHED), every=int(every))) for name, step in STEPS.items()}
    print(json.dumps({"wrong": found, "tried": counts, "models": sorted(used)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
