"""Programs that load by libraries beside PyTorch's own DataLoader, killed at random cuts, run again and compared with
the whole run and the bare program.

A process is what is killed. The libraries are large, and not installed for the tests: with them, run
`./run.sh test tests/e2e/test_data_libraries.py --slow`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.random_kills import assert_ends_as_if_never_killed
from tests.e2e.runs import detrain

PROGRAM = """
import hashlib, os, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

WORKERS = {workers}
rng = np.random.default_rng(1)
x = rng.normal(size=(96, 12)).astype("float32")
y = x[:, :3].argmax(1).astype("int64")
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)

def augmented(row):
    return torch.tensor(np.asarray(row, "float32")) + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(12)

class Rows(Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        return augmented(x[index]), int(y[index])

{made}
for epoch in range(3):
    {before}
    for batch in {loader}:
        rows, kinds = {parts}
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), kinds)
        loss.backward()
        optimizer.step()
        print(epoch, loss.item())
    print("epoch", epoch, random.random(), np.random.rand(), torch.rand(1).item())
{after}
print(hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest())
"""
_STATEFUL = "from torchdata.stateful_dataloader import StatefulDataLoader\n"
_SHARDS = """
import webdataset
for shard in range(4):
    if not os.path.exists(f"{shard}.tar"):
        with webdataset.TarWriter(f"{shard}.tar", mtime=1) as writer:
            for index in range(24 * shard, 24 * shard + 24):
                writer.write({"__key__": f"{index:04d}", "x.npy": x[index], "y.cls": int(y[index])})
def both(sample):
    return augmented(sample[0]), sample[1]
"""
_READ = """.decode().to_tuple("x.npy", "y.cls").map(both).batched(8)
loader = webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS)
"""
_ROWS = "import datasets\ndatasets.disable_progress_bars()\ndata = datasets.Dataset.from_dict({'x': x.tolist(), 'y': y.tolist()})\n"
_STREAMED = """
import datasets
datasets.disable_progress_bars()
for part in range(3):
    if not os.path.exists(f"{part}.FORM"):
        rows = {"x": x[part::3].tolist(), "y": y[part::3].tolist()}
        datasets.Dataset.from_dict(rows).to_FORM(f"{part}.FORM")
data = datasets.load_dataset("FORM", data_files=[f"{part}.FORM" for part in range(3)], split="train", streaming=True)
data = data.with_format("torch")
"""
_LOADER = "\nloader = DataLoader(data, batch_size=8, num_workers=WORKERS"
_SOURCE = """
import grain
class Source:
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        return x[index], y[index]
    def __repr__(self):
        return "Source()"
class Noise(grain.transforms.RandomMap):
    def random_map(self, row, rng):
        return row[0] + rng.normal(size=12).astype("float32") * 0.1, row[1]
"""
_COLUMNS = {"parts": 'batch["x"], batch["y"]'}
_ARRAYS = {"parts": "(torch.as_tensor(np.asarray(each)) for each in batch)"}
CASES: dict[str, dict[str, str]] = {
    "torchdata: rows": {
        "needs": "torchdata",
        "made": _STATEFUL + "loader = StatefulDataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)",
    },
    "torchdata: its own states": {
        "needs": "torchdata",
        "made": _STATEFUL + "loader = StatefulDataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)",
        "before": "print(sorted(loader.state_dict()), repr(loader.state_dict())[:4000])",
    },
    "torchdata: an IterableDataset": {
        "needs": "torchdata",
        "made": _STATEFUL + "class Stream(IterableDataset):\n    def __iter__(self):\n        info = get_worker_info()\n"
        "        first, step = (0, 1) if info is None else (info.id, info.num_workers)\n"
        "        for index in range(first, len(x), step):\n            yield augmented(x[index]), int(y[index])\n"
        "loader = StatefulDataLoader(Stream(), batch_size=8, num_workers=WORKERS)",
    },
    "torchdata: another training behind it": {
        "needs": "torchdata",
        "made": _STATEFUL + "loader = StatefulDataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)",
        "after": """
for epoch in range(3):
    for rows, kinds in DataLoader(Rows(), batch_size=24):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), kinds).backward()
        optimizer.step()
        print(epoch, "again")
""",
    },
    "webdataset: seeded": {
        "needs": "webdataset",
        "made": _SHARDS + 'data = webdataset.WebDataset("{0..3}.tar", shardshuffle=4, seed=3).shuffle(20, seed=1)' + _READ,
    },
    "datasets: rows": {
        "needs": "datasets",
        "made": _ROWS + 'data = data.with_format("torch")' + _LOADER + ", shuffle=True)",
        **_COLUMNS,
    },
    "datasets: transformed": {
        "needs": "datasets",
        "made": _ROWS
        + "data.set_transform(lambda rows: {'x': [augmented(row) for row in rows['x']], 'y': rows['y']})"
        + _LOADER
        + ", shuffle=True)",
        **_COLUMNS,
    },
    "datasets: streamed": {
        "needs": "datasets",
        "made": _ROWS
        + "data = data.to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=20)\n"
        + "data = data.map(lambda row: {'x': augmented(row['x']), 'y': row['y']}).with_format('torch')"
        + _LOADER
        + ")",
        "before": "data.set_epoch(epoch)",
        **_COLUMNS,
    },
    "datasets: JSON, streamed": {"needs": "datasets", "made": _STREAMED.replace("FORM", "json") + _LOADER + ")", **_COLUMNS},
    "datasets: Parquet, filtered and shuffled": {
        "needs": "datasets",
        "made": _STREAMED.replace("FORM", "parquet")
        + "data = data.filter(lambda row: row['y'] != 1).map(lambda row: {'x': [2 * each for each in row['x']]})\n"
        + "data = data.shuffle(seed=7, buffer_size=20)"
        + _LOADER
        + ")",
        "before": "data.set_epoch(epoch)",
        **_COLUMNS,
    },
    "datasets: rows, filtered and mapped": {
        "needs": "datasets",
        "made": _ROWS
        + "data = data.filter(lambda row: row['y'] != 1).map(lambda row: {'y': row['y'] // 2})\n"
        + "data = data.with_transform(lambda rows: {'x': [augmented(row) for row in rows['x']], 'y': rows['y']})"
        + _LOADER
        + ", shuffle=True)",
        **_COLUMNS,
    },
    "grain: a map": {
        "needs": "grain",
        "made": _SOURCE + "loader = grain.MapDataset.source(Source()).seed(5).shuffle().random_map(Noise()).batch(8)",
        **_ARRAYS,
    },
}


def program(case: dict[str, str], workers: int, folder: Path) -> Path:
    """Write the program of a case; skip the test where its library is not installed."""
    if importlib.util.find_spec(case["needs"]) is None:
        pytest.skip(f"{case['needs']} is not installed")
    parts = {"before": "pass", "after": "", "loader": "loader", "parts": "batch"} | case
    text = PROGRAM.replace("{workers}", str(workers))
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    path = folder / "program.py"
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_if_never_killed(name: str, workers: int, torch_server: Server, tmp_path: Path) -> None:
    made = program(CASES[name], workers, tmp_path)
    every = ("3b", "1", "2b")[(len(name) + workers) % 3]

    _whole, killed = assert_ends_as_if_never_killed(torch_server, made, tmp_path, every, f"{name} {workers}")

    assert "resuming" in killed.err


@pytest.mark.slow
def test_file_systems_that_are_kept_by_the_thread_are_no_difference(tmp_path: Path) -> None:
    """Each process has its own key for one: `verify` said NOT EXACT, and each resumed run that it goes on without."""
    made = program(CASES["datasets: JSON, streamed"], 0, tmp_path)

    verified = detrain("verify", "--every", "3b", made, cwd=tmp_path).ok()

    assert "EXACT: 2 kills" in verified.out
