"""A program that starts its own ranks: `spawned.py HOW EPOCHS [PORT]`, HOW: spawn (`torch.multiprocessing.spawn`), fork or
forkserver (processes by hand), or idle: functions that join no group.
"""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, world, epochs, port):
    """Train, as rank 0 or 1."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.25), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = torch.randn(6, 4, 8)
    for epoch in range(epochs):
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            if os.environ.get("DIE_AT") == f"{epoch}:{number}":
                os.kill(os.getpid(), 9)
        if rank == 0:
            print(f"epoch {epoch} {loss.item():.9f}", flush=True)
    if rank == 0:
        weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        print("final", hashlib.sha256(weights).hexdigest()[:16], flush=True)
    dist.destroy_process_group()


def idle(rank, world, epochs, port):
    """Train nothing."""


if __name__ == "__main__":
    how, epochs, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how in ("spawn", "idle"):
        mp.spawn(work if how == "spawn" else idle, args=(2, epochs, port), nprocs=2)
    else:
        processes = [mp.get_context(how).Process(target=work, args=(rank, 2, epochs, port)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print("over")
