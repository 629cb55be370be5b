"""A small network in several processes (`ddp` or `fsdp2`) that puts faults into its own steps, each once: `$FAULTS`
says in which turn, on which rank and of which kind (`5@1:weight,9@0:loss`). A file tells that one has been done.
"""

import hashlib
import os
import random
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FAULTS = dict(each.split(":") for each in os.environ.get("FAULTS", "").split(",") if each)
turn = 0


def strike():
    global turn
    turn += 1
    mark = f"{turn}@{dist.get_rank()}"
    if mark not in FAULTS or ("again" not in os.environ and os.path.exists(f"struck-{mark}")):
        return ""
    os.close(os.open(f"struck-{mark}", os.O_CREAT))
    return FAULTS[mark]


def spread(kind, net):
    if kind == "ddp":
        return DistributedDataParallel(net, bucket_cap_mb=0.002)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (net[0], net[4], net):
        fully_shard(layer, mesh=mesh)
    return net


def own(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def main(kind):
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(world * 36, 12), torch.randint(4, (world * 36,)))
    net = nn.Sequential(
        nn.Linear(12, 48), nn.LayerNorm(48), nn.Tanh(), nn.Dropout(0.2), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4)
    )
    model = spread(kind, net)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(100 + rank)
    shares = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 6, sampler=shares)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(3):
        shares.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, labels in loader:
            fault = strike()
            inputs = inputs * random.uniform(0.9, 1.1) + np.random.normal() * 0.01
            loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss * 1e25 if fault == "loss" else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            if fault == "weight":
                own(net[0].weight).data.add_(1e15)
            if fault == "slot":
                own(optimizer.state[net[4].weight]["exp_avg_sq"]).add_(1e28)
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item():.8f}", flush=True)
    values = [*map(own, net.state_dict().values()), torch.rand(2), torch.tensor([random.random(), np.random.random()])]
    print(f"rank {rank}", hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest(), flush=True)
    dist.barrier()
    del model  # PyTorch can hang where its reducer holds the group as the last one
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
