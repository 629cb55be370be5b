"""Programs over one `DataLoader`, with its documented arguments in pairs.

Their data have 26 rows; they train for 3 epochs, and print a digest of all batches of their loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.e2e import choices
from tests.e2e.programs import DIE

PRELUDE: Final = """\
import hashlib, os, random, signal, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import (BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler,
    SubsetRandomSampler, WeightedRandomSampler, default_collate, get_worker_info)

x = torch.linspace(-1, 1, 26)[:, None].expand(26, 3).contiguous()
bias = 0.0

class Rows(Dataset):
    def __len__(self):
        return 26
    def __getitem__(self, index):
        return x[index] + random.random() + float(np.random.rand()) + torch.rand(3) + bias

class Several(Rows):
    def __getitems__(self, indices):
        noise = torch.rand(())
        return [x[index] + noise + random.random() for index in indices]

class Counting(Rows):
    def __init__(self):
        self.seen = 0
    def __getitem__(self, index):
        self.seen += 1
        return super().__getitem__(index) + self.seen

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 26, step):
            yield Rows()[index]

class Growing:
    def __iter__(self):
        order = torch.randperm(26).tolist()
        sizes = [1, 2, 3, 4, 5, 6, 5]
        for size in sizes:
            yield order[:size]
            order = order[size:]
    def __len__(self):
        return 7

class Halves:
    def __init__(self):
        self.turn = 0
    def __iter__(self):
        self.turn += 1
        yield from range(self.turn % 2, 26, 2)
        yield from random.sample(range(26), 8)

def by_worker(number):
    global bias
    bias = float(number)

def by_seed(number):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)

def mixed(rows):
    return default_collate(rows) * random.uniform(0.5, 1.5) + torch.rand(())

"""
TRAINING: Final = DIE("""\
def main():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    data = {data}
    loader = DataLoader(data, {arguments})
    digest, turn = hashlib.sha256(), 0
    for epoch in range(3):
        for step, rows in enumerate(loader):
            turn += 1
            die(f"{{epoch}}:{{step}}")
            given = rows.reshape(-1, 3)
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()
            if step % 2:
                random.random(), torch.rand(())
        print(epoch, turn, random.random(), float(np.random.rand()), float(torch.rand(())))
        print(given.sum().item(), [float(weight) for weight in model.weight[0]])
    print("ended", hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())

if __name__ == "__main__":
    main()
""")
TABLE: Final[dict[str, list[object]]] = {
    "data": ["rows", "several", "counting", "list"],
    "batches": [
        "batch_size=4",
        "batch_size=4, shuffle=True",
        "shuffle=True, drop_last=True",
        "batch_size=5, drop_last=True",
        "batch_size=3, sampler=RandomSampler(data, replacement=True, num_samples=23, generator=torch.Generator().manual_seed(3))",
        "batch_size=4, sampler=WeightedRandomSampler(range(1, 27), 26)",
        "batch_size=4, sampler=SubsetRandomSampler(range(3, 26)), drop_last=True",
        "batch_size=3, sampler=[5, 3, 8, 1, 25, 7, 7, 0, 2, 4, 6, 9]",
        "batch_size=4, sampler=Halves()",
        "batch_sampler=BatchSampler(SequentialSampler(data), 4, True)",
        "batch_sampler=[[1, 2, 3], [9], [4, 5, 25, 6], [0], [11, 10]]",
        "batch_sampler=Growing()",
    ],
    "generator": [None, "torch.Generator().manual_seed(9)"],
    "collate_fn": [None, "mixed", "torch.stack"],
    "worker_init_fn": [None, "by_worker", "by_seed"],
    "pin_memory": [False, True],
    "every": ["2b", "1", "3b"],
}
SINGLY: Final[dict[str, list[object]]] = TABLE | {
    "batches": ["batch_size=None", "batch_size=None, shuffle=True"],
    "collate_fn": [None],
}
"""For loaders that return single rows."""
STREAMED: Final[dict[str, list[object]]] = TABLE | {
    "data": ["stream"],
    "batches": ["batch_size=4", "batch_size=5, drop_last=True"],
}
"""For data sets that set the order themselves."""
WORKERS: Final[dict[str, list[object]]] = {
    "num_workers": [2, 3],
    "persistent_workers": [False, True],
    "prefetch_factor": [None, 1, 3],
    "multiprocessing_context": [None, "'fork'", "'spawn'", "'forkserver'"],
    "timeout": [0, 60],
    "in_order": [True, False],
}
"""Arguments that go with workers."""
_SETS: Final = {
    "rows": "Rows()",
    "several": "Several()",
    "counting": "Counting()",
    "stream": "Stream()",
    "list": "list(x.clone())",
}


def rows() -> list[dict[str, object]]:
    """Return programs without workers, then programs with some. Each two values of different arguments occur together,
    if PyTorch allows it.
    """
    tables = [table | more for more in ({}, WORKERS) for table in (TABLE, SINGLY, STREAMED)]
    return [row for table in tables for row in choices.pairs(table)]


def is_refused(row: Mapping[str, object]) -> bool:
    """Return True if no run can resume such a program: persistent workers have changed their copies of the data set."""
    return row["data"] == "counting" and bool(row.get("persistent_workers"))


def text(row: Mapping[str, object]) -> str:
    """Return the program of a row."""
    arguments = [str(row["batches"])]
    arguments += [f"{name}={value}" for name, value in row.items() if name not in ("data", "batches", "every")]
    return PRELUDE + TRAINING.format(data=_SETS[str(row["data"])], arguments=", ".join(arguments))


def name_of(row: dict[str, object]) -> str:
    """Return a row in words."""
    return choices.name_of(row, TABLE | WORKERS)
