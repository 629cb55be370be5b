"""A small network whose weights are spread over several processes, in a way that is said by words: FSDP2
(`fully_shard`), FSDP, ZeroRedundancyOptimizer, tensor parallelism, and what goes with them. Dropout and noise are each
rank's own; loss and norms are printed.
"""

import hashlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(48, 24)
        self.norm = nn.LayerNorm(24)
        self.first = nn.Linear(24, 48)

    def forward(self, inputs):
        hidden = nn.functional.dropout(torch.tanh(self.first(self.norm(inputs))), 0.2, self.training)
        return inputs + self.last(hidden)


class Net(nn.Module):
    """Some of its weights divide evenly by no world, and one is smaller than all."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.enter = nn.Linear(12, 24)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.leave = nn.Linear(24, 5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        self.seen += len(inputs)
        hidden = self.enter(inputs) * self.scale
        for block in self.blocks:
            hidden = block(hidden)
        return self.leave(hidden)


def made(words):
    """Return the network as it begins."""
    if "deferred" not in words:
        return spread(words, Net())
    with torch.device("meta"):
        model = Net()
    model = spread(words, model)
    model.to_empty(device="cpu")
    torch.manual_seed(7 + dist.get_rank())
    with torch.no_grad():
        model.seen.zero_()
        for parameter in model.parameters():
            parameter.to_local().uniform_(-0.3, 0.3)
    return model


def moved_by_hand(parameters):
    with torch.no_grad():
        for parameter in parameters:
            parameter.sub_(0.05 * parameter.grad)
            parameter.grad = None


def spread(words, model):
    """Return the model as these words say."""
    world = dist.get_world_size()
    if "fsdp2" in words:
        options = {}
        if "mixed" in words:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if "kept" in words:
            options["reshard_after_forward"] = False
        if "regrouped" in words:
            options["reshard_after_forward"] = 2
        if "offloaded" in words:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        if "hybrid" in words:
            options["mesh"] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        else:
            options["mesh"] = init_device_mesh("cpu", (world,))
        if "recomputed" in words:
            apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
        for block in model.blocks if "compiled" in words else ():
            block.compile(backend="aot_eager")
        blocks = list(model.blocks)
        for block in [blocks[:2], blocks[2]] if "grouped" in words else blocks:
            fully_shard(block, **options)
        return fully_shard(model, **options)
    if "fsdp1" in words:
        strategies = [ShardingStrategy.SHARD_GRAD_OP] if "kept" in words else [ShardingStrategy.FULL_SHARD]
        for number, block in enumerate(model.blocks):
            model.blocks[number] = FullyShardedDataParallel(block, device_id=torch.device("cpu"), use_orig_params="views" in words)
        return FullyShardedDataParallel(
            model,
            device_id=torch.device("cpu"),
            use_orig_params="views" in words,
            sharding_strategy=strategies[0],
        )
    if "tensors" in words:
        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"first": ColwiseParallel(), "last": RowwiseParallel()})
        return model
    return DistributedDataParallel(model)


def digest(tensors):
    values = [each.to_local() if isinstance(each, DTensor) else each for each in tensors if isinstance(each, torch.Tensor)]
    values = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in values]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()[:20]


def main(words):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(world * 36, 12), torch.randint(5, (world * 36,)))
    model, best, lowest = made(words), {}, float("inf")
    random.seed(rank)
    is_own = "tensors" not in words  # else all ranks compute one batch together
    torch.manual_seed(100 + rank if is_own else 5)
    shares = DistributedSampler(data, world, rank) if is_own else DistributedSampler(data, 1, 0)
    loader = DataLoader(data, 6, sampler=shares)
    if "zero" in words:
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, parameters_as_bucket_view="views" in words, lr=0.01
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    for epoch in range(3):
        shares.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for step, (inputs, labels) in enumerate(loader):
            if is_own:
                inputs = inputs * random.uniform(0.9, 1.1)
            is_last = "accumulated" not in words or step % 3 == 2
            if "unreduced" in words:
                model.set_requires_gradient_sync(is_last)
            if "partly" in words:  # reduced within the shards, not over the replicas
                model.set_requires_all_reduce(is_last)
            loss = nn.functional.cross_entropy(model(inputs).float(), labels)
            loss.backward()
            if "clipped" in words:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                total += norm.full_tensor() if isinstance(norm, DTensor) else norm
            if "manual" in words:
                moved_by_hand(model.parameters())
            elif is_last:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        if "manual" not in words:
            schedule.step()
        dist.all_reduce(total)
        if "best" in words and total.item() < lowest:
            best, lowest = {name: value.clone() for name, value in model.state_dict().items()}, total.item()
        model.eval()
        with torch.no_grad():
            held_out = model(data.tensors[0]).float().mean()
        if rank == 0:
            print(f"epoch {epoch} loss {total.item():.8f} held out {held_out.item():.8f}", flush=True)
    state = optimizer.optim.state if "zero" in words else optimizer.state
    kept = [value for held in state.values() for value in held.values()]
    weights, moments = digest([*model.parameters(), *model.buffers(), *best.values()]), digest(kept)
    print(f"rank {rank} weights {weights} moments {moments} draws {torch.rand(1).item()} {random.random()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
