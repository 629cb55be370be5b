"""A small network in several processes by DistributedDataParallel, in one of its modes: gradients lie in several
buckets, dropout and noise are each rank's own.
"""

import contextlib
import hashlib
import random
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

MODES = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "one_bucket": {"bucket_cap_mb": 100},
    "unused": {"find_unused_parameters": True},
    "accumulated": {},
    "no_buffers": {"broadcast_buffers": False},
}


class Net(nn.Module):
    """Its layers are used in another order than they are registered in."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(48, 4)
        self.first = nn.Linear(12, 48)
        self.norm = nn.BatchNorm1d(48)
        self.middle = nn.Linear(48, 48)

    def forward(self, inputs):
        hidden = torch.tanh(self.norm(self.first(inputs)))
        hidden = nn.functional.dropout(torch.tanh(self.middle(hidden)), 0.2, self.training)
        return self.last(hidden)


def main(mode):
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))  # a last barrier has hung where the other rank had ended
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(world * 36, 12), torch.randint(4, (world * 36,)))
    options = {"bucket_cap_mb": 0.002, **MODES[mode]}
    model = DistributedDataParallel(Net(), **options)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(100 + rank)
    shares = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 6, sampler=shares)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    for epoch in range(3):
        shares.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for step, (inputs, labels) in enumerate(loader):
            inputs = inputs * random.uniform(0.9, 1.1) + np.random.normal() * 0.01
            is_last = mode != "accumulated" or step % 3 == 2
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        schedule.step()
        dist.all_reduce(total)
        dist.barrier()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                held_out = model.module(data.tensors[0]).mean()
            print(f"epoch {epoch} loss {total.item():.8f} held out {held_out.item():.8f}", flush=True)
    values = [*model.module.state_dict().values(), torch.rand(2), torch.tensor([random.random(), np.random.random()])]
    print(f"rank {rank}", hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
