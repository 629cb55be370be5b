"""Jobs, one behind the other in the same processes: `ends.py COUNT`. Each ends as an ordinary job does: its model goes
behind the process group. A thread that asks for Python's lock gets it only where it is let go: in PyTorch alone each
end may then be one that never comes.
"""

import faulthandler
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COUNT, RANK, WORLD = int(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
faulthandler.dump_traceback_later(60 + 2 * COUNT, exit=True)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
sys.setswitchinterval(1000)


def job(number: int) -> float:
    """Train a model in a process group of its own, and tell what came of it."""
    dist.init_process_group("gloo", store=dist.PrefixStore(str(number), store), rank=RANK, world_size=WORLD)
    torch.manual_seed(number)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    if number % 4 == 3:
        model.itself = [model]  # goes with the garbage
    optimizer = torch.optim.Adam(model.parameters())
    loss = 0.0
    for batch in torch.ones(2, 4, 16) * (1 + RANK):
        optimizer.zero_grad()
        output = model(batch).sum()
        output.backward()
        optimizer.step()
        loss += output.item()
    mine = torch.tensor([loss])
    of_all = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(of_all, mine)
    result = sum(each.item() for each in of_all)
    if number < COUNT - 1 or COUNT % 2:
        dist.destroy_process_group()
    return result


print("final", [job(number) for number in range(COUNT)], flush=True)
