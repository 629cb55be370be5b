"""Two optimizers, gradients that are accumulated over two batches and scaled, BatchNorm, a schedule, workers that load."""

import contextlib
import hashlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Noisy(Dataset):
    def __init__(self, count):
        self.inputs, self.labels = torch.randn(count, 12), torch.randint(4, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index] + 0.01 * torch.randn(12) * random.random(), self.labels[index]


def main(workers):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = Noisy(world * 36)
    body = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.Tanh(), nn.Dropout(0.2), nn.Linear(48, 48), nn.Tanh())
    model = DistributedDataParallel(nn.Sequential(body, nn.Linear(48, 4)), bucket_cap_mb=0.002)
    random.seed(rank)
    torch.manual_seed(100 + rank)
    shares = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 6, sampler=shares, num_workers=workers)
    slow = torch.optim.SGD(model.module[0].parameters(), 0.02, momentum=0.9)
    quick = torch.optim.Adam(model.module[1].parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(quick, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for epoch in range(3):
        shares.set_epoch(epoch)
        total = 0.0
        for step, (inputs, labels) in enumerate(loader):
            is_last = step % 2 == 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), labels) / 2
                scaler.scale(loss).backward()
            if is_last:
                for optimizer in (slow, quick):
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
                schedule.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} loss {total:.8f} scale {scaler.get_scale()}", flush=True)
    values = [*model.module.state_dict().values(), torch.rand(2), torch.tensor([random.random(), scaler.get_scale()])]
    print(f"rank {rank}", hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
