"""Ordinary PyTorch programs: the common ways to load, to train and to look, in pairs.

Their data have 46 rows in batches of 10, so 5 batches; they train for 4 epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.e2e import choices
from tests.e2e.choices import DIE, indented, pairs

PRELUDE: Final = (
    """\
import copy, hashlib, itertools, os, random, signal, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import (BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, Subset,
    SubsetRandomSampler, TensorDataset, WeightedRandomSampler, get_worker_info)

"""
    + DIE
    + """\
x = torch.randn(46, 6)
y = (x.sum(1) > 0).long()

class Rows(Dataset):
    def __len__(self):
        return 46
    def __getitem__(self, index):
        return x[index], y[index]

class Augmented(Rows):
    def __getitem__(self, index):
        row, label = super().__getitem__(index)
        return row * random.uniform(0.9, 1.1) + float(np.random.normal(scale=0.1)) + 0.1 * torch.randn(6), label

class Own(Rows):
    def __init__(self):
        self.rng, self.seen = np.random.default_rng(5), 0
    def __getitem__(self, index):
        row, label = super().__getitem__(index)
        self.seen += 1
        return row + float(self.rng.normal(scale=0.1)) + 0.001 * self.seen, label

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 46, step):
            yield x[index] + 0.1 * torch.randn(6), y[index]

class Reversed(Sampler):
    def __init__(self):
        self.epoch = 0
    def __iter__(self):
        self.epoch += 1
        order = list(range(46))
        random.Random(self.epoch).shuffle(order)
        yield from order
    def __len__(self):
        return 46

class Drawing(Reversed):
    def __iter__(self):
        for _ in range(46):
            yield random.randrange(46)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)
        self.calls = 0
    def forward(self, rows):
        self.calls += 1
        return self.last(self.drop(torch.relu(self.norm(self.first(rows)))))

class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 6)
        self.rnn, self.last = nn.GRU(6, 8, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(8, 8, bias=False)
        self.last.weight = nn.Parameter(torch.randn(8, 8))
        self.out = nn.Linear(8, 2)
        self.state = None
    def forward(self, rows):
        words = (rows.abs() * 4).long().clamp(max=7)
        out, state = self.rnn(self.words(words))
        self.state = state.detach()
        return self.out(self.last(out[:, -1]))

def show(*more):
    parts = [value for each in (model, *more) for value in each.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        parts += [value for value in state.values() if isinstance(value, torch.Tensor)]
    content = b"".join(part.detach().float().numpy().tobytes() for part in parts)
    print("weights", hashlib.sha256(content).hexdigest(), hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8])
    print("starts", starts)

"""
)

TABLE: Final[dict[str, list[object]]] = {
    "data": ["rows", "tensors", "augmented", "own", "stream", "subset", "generator", "slices"],
    "order": ["shuffle", "none", "generator", "replacement", "weighted", "subset", "batches", "own sampler", "drawing sampler"],
    "workers": [0, 2, "persistent"],
    "loop": ["for", "enumerate", "next", "endless", "zip", "islice", "tqdm"],
    "model": ["net", "sequence"],
    "optimizer": ["adam", "sgd", "adamw fused", "rmsprop foreach", "lbfgs"],
    "schedule": [None, "step", "onecycle", "plateau", "lambda"],
    "step": ["plain", "accumulate", "autocast", "clip", "ema", "scaler"],
    "after": [None, "validate", "best", "draw", "save"],
    "every": ["1", "2b", "3b"],
}
LIBRARY: Final = """\
import queue, threading

class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, max_prefetch=1):
        super().__init__(daemon=True)
        self.queue, self.generator, self.is_over = queue.Queue(max_prefetch), generator, False
        self.start()
    def run(self):
        try:
            for item in self.generator:
                self.queue.put((True, item))
        finally:
            self.queue.put((False, None))
    def __iter__(self):
        return self
    def __next__(self):
        goes_on, item = self.queue.get() if not self.is_over else (False, None)
        if not goes_on:
            self.is_over = True
            raise StopIteration
        return item
"""
"""The file `site-packages/ahead.py` beside the programs: a library whose threads load ahead."""
BESIDE: Final[dict[str, list[object]]] = {
    "data": ["rows", "tensors", "own", "augmented"],
    "ahead": [None, "thread", "iterator", "generator", "function", "library", "loader"],
    "order": ["shuffle", "none", "replacement", "weighted", "own sampler"],
    "workers": [0, 2],
    "loop": ["for", "enumerate", "zip", "tqdm"],
    "after": [None, "validate", "save"],
    "every": ["1", "2b", "1b"],
    "log": [None, "rotating", "tensorboard", "own resume", "dated"],
}
"""Activities beside the loop."""
HELPED: Final[dict[str, list[object]]] = {
    "data": ["rows", "augmented"],
    "helper": ["torch_ema", "pytorch_warmup", "opacus", "peft"],
    "log": [None, "wandb", "mlflow", "hydra"],
    "ahead": [None, "thread", "library"],
    "workers": [0, 2],
    "loop": ["for", "enumerate", "zip"],
    "optimizer": ["adam", "sgd"],
    "after": [None, "validate", "best", "save"],
    "every": ["1", "2b", "1b"],
}
"""Libraries that take part in each step, and libraries that record."""
_HELPERS: Final = {
    "torch_ema": (
        "from torch_ema import ExponentialMovingAverage\nema = ExponentialMovingAverage(model.parameters(), decay=0.9)\n",
        "ema.update()",
        "with ema.average_parameters():\n    print('averaged', float(loss_of(model(x), y)))",
        "print(ema.num_updates, [float(each.sum()) for each in ema.shadow_params])",
    ),
    "pytorch_warmup": (
        """\
import pytorch_warmup
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
warmup = pytorch_warmup.LinearWarmup(optimizer, 7)
""",
        "with warmup.dampening():\n    schedule.step()",
        "print(optimizer.param_groups[0]['lr'])",
        "print(warmup.state_dict())",
    ),
    "opacus": (
        """\
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
model = ModuleValidator.fix(model)
engine = PrivacyEngine(accountant="rdp")
model, optimizer, loader = engine.make_private(
    module=model, optimizer=OPTIMIZER, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0)
""",
        "",
        "print(engine.get_epsilon(1e-5))",
        "print(engine.accountant.history)",
    ),
    "peft": (
        """\
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(target_modules=["first", "last"], r=2, lora_dropout=0.1))
optimizer = OPTIMIZER
""",
        "",
        "",
        "model.save_pretrained('adapter')",
    ),
}
"""Code that uses a library: before the loop, after each step, after each epoch, at the end."""
_LOGS: Final = {
    None: ("", "", "", ""),
    "rotating": (
        """\
import glob, logging
from logging.handlers import RotatingFileHandler
log = logging.getLogger("train")
log.setLevel("INFO")
log.addHandler(RotatingFileHandler("train.log", maxBytes=60, backupCount=3))
log.info("begin")
""",
        "log.info('%d %r', turns, float(loss))",
        "log.info('epoch %d', epoch)",
        "print([open(name).read() for name in sorted(glob.glob('train.log*'))])",
    ),
    "tensorboard": (
        "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter('runs')\n",
        "writer.add_scalar('loss', float(loss), turns)",
        "",
        "writer.close()",
    ),
    "own resume": (
        """\
if os.path.exists("last.pt"):
    held = torch.load("last.pt")
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    print("goes on by itself")
""",
        "",
        "torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 'last.pt')",
        "",
    ),
    "dated": (
        """\
import datetime
folder = os.path.join("outputs", datetime.datetime.now().strftime("%H-%M-%S-%f"))
os.makedirs(folder)
""",
        "",
        "torch.save(model.state_dict(), os.path.join(folder, f'{epoch}.pt'))",
        "print([sorted(os.listdir(os.path.join('outputs', name))) for name in os.listdir('outputs')])",
    ),
    "wandb": (
        "import wandb\nrun = wandb.init(project='rows', mode='offline')\n",
        "run.log({'loss': float(loss)})",
        "run.summary['total'] = total",
        "print(run.summary['total'])\nrun.finish()",
    ),
    "mlflow": (
        "import mlflow\nmlflow.set_tracking_uri('sqlite:///mlflow.db')\nmlflow.start_run()\n",
        "",
        "mlflow.log_metric('total', total, step=epoch)",
        """\
history = mlflow.MlflowClient().get_metric_history(mlflow.active_run().info.run_id, "total")
print(history[-1].step, history[-1].value)  # a resumed program records in a run of its own
mlflow.end_run()""",
    ),
    "hydra": (
        "from hydra.core.hydra_config import HydraConfig\nfrom omegaconf import open_dict\n"
        "folder = HydraConfig.get().runtime.output_dir\n",
        "",
        "with open_dict(settings):\n    settings[f'total{epoch}'] = total\n"
        "torch.save(model.state_dict(), os.path.join(folder, f'{epoch}.pt'))",
        "print(settings, sorted(os.listdir(folder)))",
    ),
}
"""Code by which a program records: before its loop, in each batch, after each epoch, at its end."""
_HYDRA: Final = "import hydra\n@hydra.main(version_base=None)\ndef main(settings):\n    global model, optimizer\n"
_FROM_LIBRARY: Final = """\
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
from ahead import BackgroundGenerator
"""
_AHEAD: Final = {
    "thread": (LIBRARY, "BackgroundGenerator(loader)"),
    "iterator": (
        """\
import queue, threading
class Prefetch:
    def __init__(self, loader):
        self.queue, self.loader = queue.Queue(3), loader
        threading.Thread(target=self.fill, daemon=True).start()
    def fill(self):
        for batch in self.loader:
            self.queue.put(batch)
        self.queue.put(None)
    def __iter__(self):
        return self
    def __next__(self):
        batch = self.queue.get()
        if batch is None:
            raise StopIteration
        return batch
""",
        "Prefetch(loader)",
    ),
    "generator": (
        """\
import queue, threading
def prefetch(loader):
    held = queue.Queue(2)
    def fill():
        for batch in loader:
            held.put(batch)
        held.put(None)
    threading.Thread(target=fill, daemon=True).start()
    while (batch := held.get()) is not None:
        yield batch
""",
        "prefetch(loader)",
    ),
    "function": (
        """\
import queue, threading
def fill(held, batches):
    for batch in batches:
        held.put(batch)
    held.put(None)
def begin(held, batches):
    thread = threading.Thread(target=fill, args=(held, batches))
    thread.start()
    return held
""",
        "iter(begin(queue.Queue(2), iter(loader)).get, None)",
    ),
    "library": (_FROM_LIBRARY, "BackgroundGenerator(loader, max_prefetch=2)"),
    "loader": (
        _FROM_LIBRARY
        + """\
class LoaderAhead(DataLoader):
    def __iter__(self):
        return BackgroundGenerator(super().__iter__())
""",
        "loader",
    ),
}
"""Ways in which a thread loads ahead: the program's code for it, and the expression that the loop goes over."""
_SETS: Final = {
    "rows": "Rows()",
    "tensors": "TensorDataset(x, y)",
    "augmented": "Augmented()",
    "own": "Own()",
    "stream": "Stream()",
    "subset": "Subset(Augmented(), list(range(45, -1, -1)))",
}
_ORDERS: Final = {
    "shuffle": "batch_size=10, shuffle=True",
    "none": "batch_size=10",
    "generator": "batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(4)",
    "replacement": "batch_size=10, sampler=RandomSampler(data, replacement=True, num_samples=46)",
    "weighted": "batch_size=10, sampler=WeightedRandomSampler(torch.arange(1.0, 47.0), 46)",
    "subset": "batch_size=10, sampler=SubsetRandomSampler(range(46))",
    "batches": "batch_sampler=BatchSampler(RandomSampler(data), 10, drop_last=False)",
    "own sampler": "batch_size=10, sampler=Reversed()",
    "drawing sampler": "batch_size=10, sampler=Drawing()",
}
_WORKERS: Final = {0: "", 2: ", num_workers=2", "persistent": ", num_workers=2, persistent_workers=True"}
_OPTIMIZERS: Final = {
    "adam": "torch.optim.Adam(model.parameters(), 0.01)",
    "sgd": "torch.optim.SGD([{'params': model.parameters()}], 0.05, momentum=0.9, nesterov=True)",
    "adamw fused": "torch.optim.AdamW(model.parameters(), 0.01, fused=True)",
    "rmsprop foreach": "torch.optim.RMSprop(model.parameters(), 0.01, foreach=True)",
    "lbfgs": "torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)",
}
_SCHEDULES: Final = {
    None: ("", "", ""),
    "step": ("torch.optim.lr_scheduler.StepLR(optimizer, 2)", "", "schedule.step()"),
    "onecycle": ("torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)", "schedule.step()", ""),
    "plateau": ("torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)", "", "schedule.step(total)"),
    "lambda": ("torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)", "", "schedule.step()"),
}
_STEPS: Final = {
    "plain": "optimizer.zero_grad()\nloss = loss_of(model(a), b)\nloss.backward()\noptimizer.step()",
    "accumulate": (
        "loss = loss_of(model(a), b)\n(loss / 3).backward()\nif turns % 3 == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "autocast": (
        "optimizer.zero_grad()\nwith torch.autocast('cpu', torch.bfloat16):\n    loss = loss_of(model(a), b)\n"
        "loss.backward()\noptimizer.step()"
    ),
    "clip": (
        "optimizer.zero_grad(set_to_none=False)\nloss = loss_of(model(a), b)\nloss.backward()\n"
        "nn.utils.clip_grad_norm_(model.parameters(), 0.5)\noptimizer.step()"
    ),
    "ema": ("optimizer.zero_grad()\nloss = loss_of(model(a), b)\nloss.backward()\noptimizer.step()\nema.update_parameters(model)"),
    "scaler": (
        "optimizer.zero_grad()\nloss = loss_of(model(a), b)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
    ),
}
_CLOSURE: Final = """\
def closure():
    optimizer.zero_grad()
    loss = loss_of(model(a), b)
    loss.backward()
    return loss
loss = optimizer.step(closure)"""
_AFTER: Final = {
    None: "",
    "validate": (
        "model.eval()\nwith torch.no_grad():\n    print('right', sum(int((model(c).argmax(1) == d).sum()) for c, d in held_out))\n"
        "model.train()"
    ),
    "best": "if total < best[0]:\n    best = total, copy.deepcopy(model.state_dict())",
    "draw": "print(random.random(), float(np.random.rand()), float(torch.rand(())))",
    "save": "torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 'own.pt')",
}
_LOOPS: Final = {
    "for": ("", "for a, b in loader:", ""),
    "enumerate": ("", "for step, (a, b) in enumerate(loader):", ""),
    "tqdm": ("", "for a, b in tqdm(loader, disable=None, leave=False):", ""),
    "zip": ("", "for (a, b), number in zip(loader, itertools.count()):", ""),
    "islice": ("", "for a, b in itertools.islice(loader, 4):", ""),
    "next": ("batches = iter(loader)", "for step in range(4):", "a, b = next(batches)"),
    "endless": (
        "",
        "for step in range(4):",
        "try:\n    a, b = next(batches)\nexcept StopIteration:\n    batches = iter(loader)\n    a, b = next(batches)",
    ),
}


CONFIGS: Final = '''
import collections


class Dict(dict):
    def __init__(self, lr):
        super().__init__(lr=lr)
        object.__setattr__(self, "frozen", [False])

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Shown(Dict):
    """What it shows as `__dict__` is made anew each time."""

    __dict__ = property(lambda self: dict(self))

    def __init__(self, lr):
        dict.__init__(self, lr=lr)


class Same(dict):
    def __init__(self, lr):
        super().__init__(lr=lr)
        self.__dict__ = self


class Told(Dict):
    def __new__(cls, *arguments):
        made = super().__new__(cls)
        object.__setattr__(made, "box", {"made": True})
        return made

    def __reduce_ex__(self, protocol):
        return Told, (self["lr"],)


class Listed(list):
    lr = property(lambda self: self[0], lambda self, value: list.__setitem__(self, 0, value))

    def __init__(self, lr):
        super().__init__([lr])

    def __setitem__(self, key, value):
        list.__setitem__(self, 0, value)


class Attributes:
    def __init__(self, lr):
        self.lr, self.seen = lr, {1, 2}

    def __setitem__(self, key, value):
        setattr(self, key, value)


class Slots:
    __slots__ = ("lr",)

    def __init__(self, lr):
        object.__setattr__(self, "lr", lr)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    __setitem__ = __setattr__


class Node(Attributes):
    """A tree whose leaves know their parent, as OmegaConf's."""

    def __init__(self, lr, parent=None):
        self.parent, self.content = parent, collections.OrderedDict()
        self.content["lr"] = Attributes(lr)

    lr = property(lambda self: self.content["lr"].lr, lambda self, value: self.content.update(lr=Attributes(value)))
'''
"""Configs of a library: classes of containers, classes with attributes or slots, and a tree."""
_MAKERS: Final = {
    "yacs": ("from yacs.config import CfgNode", "CfgNode({{'lr': {}}})"),
    "munch": ("from munch import Munch", "Munch(lr={})"),
    "addict": ("import addict", "addict.Dict(lr={})"),
    "box": ("from box import Box", "Box(lr={})"),
    "omegaconf": ("from omegaconf import OmegaConf", "OmegaConf.create({{'lr': {}, 'twice': '${{lr}}'}})"),
    "mmengine": ("from mmengine.config import ConfigDict", "ConfigDict(lr={})"),
}
"""Code that makes a config of a real library: an import, and an expression."""
CONFIG: Final = {
    "config": ["Dict", "Shown", "Same", "Told", "Listed", "Attributes", "Slots", "Node", *_MAKERS],
    "made": ["before", "in the loop"],
    "change": ["item", "attribute", "whole"],
    "every": ["1", "3b"],
}
_CHANGES: Final = {
    "item": "config['lr'] = config.lr * 0.8",
    "attribute": "config.lr = config.lr * 0.8",
    "whole": "config = MADE",
}


def tables() -> tuple[list[dict[str, object]], ...]:
    """Return tables of programs: plain ones, ones with activities beside the loop, ones that keep their learning rate
    in a config of a library, and ones that use libraries in each step and for records.
    """
    first = {name: values[0] for name, values in TABLE.items()}
    return pairs(TABLE, _is_possible), *(pairs(table, **first) for table in (BESIDE, CONFIG, HELPED))


def needs(row: Mapping[str, object]) -> set[str]:
    """Return the libraries that a program needs and other tests do not."""
    libraries = {"torch_ema", "pytorch_warmup", "opacus", "peft", "wandb", "mlflow", "hydra", *_MAKERS}
    return {str(row[name]) for name in ("helper", "log", "config") if row.get(name) in libraries}


def _is_possible(row: Mapping[str, object]) -> bool:
    if row.get("optimizer") == "lbfgs":  # LBFGS takes a closure, and has no momentum that OneCycle could set
        is_plain = row.get("step", "plain") == "plain" and row.get("model", "net") == "net"
        if not is_plain or row.get("schedule") == "onecycle":
            return False
    if row["data"] in ("generator", "slices"):
        is_alone = (row.get("order", "none"), row.get("workers", 0)) == ("none", 0)
        return is_alone and (row["data"] != "slices" or row.get("loop", "for") == "for")
    return row["data"] != "stream" or row.get("order", "none") == "none"


def draws_ahead(row: Mapping[str, object]) -> bool:
    """Return True if a thread draws random numbers while bodies draw, too: without detrain, in an order by chance."""
    draws = (row["data"], row["workers"]) == ("augmented", 0) or row.get("helper") == "opacus"  # its sampler draws each batch
    return bool(row.get("ahead")) and draws


def is_refused(row: Mapping[str, object]) -> bool:
    """Return True if no run can resume such a program: detrain cannot reach the state of its loaders between epochs."""
    if (row["data"], row["workers"]) == ("own", "persistent"):  # workers change their copies of the data set
        return True
    if (row["data"], row["workers"], row["loop"]) == ("stream", "persistent", "islice"):  # nobody knows how far they are ahead
        return True
    is_own = row["order"] in ("own sampler", "drawing sampler") or row["data"] == "generator"
    return row["loop"] == "endless" and (is_own or (row["data"], row["workers"]) == ("stream", 0))


def text(row: Mapping[str, object]) -> str:
    """Return the program of a row."""
    data = str(row["data"])
    made, at_step, at_epoch = _SCHEDULES[row["schedule"]]  # type: ignore[index]
    at_start, header, load = _LOOPS[str(row["loop"])]
    if data == "generator":
        source = """\
class Batches:
    def __iter__(self):
        order = torch.randperm(46)
        for start in range(0, 46, 10):
            chosen = order[start : start + 10]
            yield x[chosen] + 0.1 * torch.randn(len(chosen), 6), y[chosen]
loader = Batches()
"""
    elif data == "slices":
        source = ""
        at_start = "order = torch.randperm(46)"
        header, load = "for start in range(0, 46, 10):", "chosen = order[start : start + 10]\na, b = x[chosen], y[chosen]"
    else:
        source = f"data = {_SETS[data]}\nloader = DataLoader(data, {_ORDERS[str(row['order'])]}{_WORKERS[row['workers']]})\n"  # type: ignore[index]
    if row["loop"] == "endless":
        source += "batches = iter(loader)\n"
    definitions = ""
    if row.get("ahead"):
        definitions, expression = _AHEAD[str(row["ahead"])]
        header = header.replace("loader", expression)
    if row.get("ahead") == "loader":
        source = source.replace("loader = DataLoader(", "loader = LoaderAhead(")
    if row["loop"] == "tqdm":
        source = "from tqdm import tqdm\n" + source
    step = _CLOSURE if row["optimizer"] == "lbfgs" else _STEPS[str(row["step"])]
    before, each, behind, end = _LOGS[row.get("log")]  # type: ignore[index]
    helper, at_each_step, at_each_epoch, at_end = _HELPERS.get(str(row.get("helper")), ("", "", "", ""))
    source += helper.replace("OPTIMIZER", _OPTIMIZERS[str(row["optimizer"])])
    body = [load, "die()", step, at_step, at_each_step, "total += float(loss)", each]
    of_config, change = [], []
    if row.get("config"):
        module, made_by = _MAKERS.get(str(row["config"]), ("import configs", f"configs.{row['config']}({{}})"))
        config = made_by.format("0.02")
        of_config = [f"config = config or {config}", "optimizer.param_groups[0]['lr'] = config.lr"]
        change = [_CHANGES[str(row["change"])].replace("MADE", made_by.format("config.lr * 0.8")), "print(config.lr)"]
        source += "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
        source += f"{module}\nconfig = {config if row['made'] == 'before' else None}\n"
    lines = [
        *of_config,
        at_start,
        "total = 0.0",
        "starts.append(turns + 1)",
        header,
        *indented(body),
        "print(epoch, total)",
        at_epoch,
        *change,
        at_each_epoch,
        _AFTER[row["after"]],  # type: ignore[index]
        behind,
    ]
    ema = "ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))\n"
    scaler = "scaler = torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=3)\n"
    trains = (
        f"model = {'Net' if row['model'] == 'net' else 'Sequence'}()\noptimizer = {_OPTIMIZERS[str(row['optimizer'])]}\n"
        + (f"schedule = {made}\n" if made else "")
        + (ema if row["step"] == "ema" else scaler if row["step"] == "scaler" else "")
        + "loss_of, best = nn.CrossEntropyLoss(), (9e9, None)\nheld_out = DataLoader(TensorDataset(x, y), 20, shuffle=True)\n"
        + source
        + before
        + "for epoch in range(4):\n"
        + "\n".join(indented(lines))
        + f"\n{at_end}\n{end}\nshow({'ema' if row['step'] == 'ema' else ''})\n"
    )
    return PRELUDE + definitions + (_HYDRA + "\n".join(indented([trains])) + "\nmain()\n" if row.get("log") == "hydra" else trains)


def name_of(row: dict[str, object]) -> str:
    """Return a row in words."""
    return choices.name_of(row, {**BESIDE, **TABLE})
