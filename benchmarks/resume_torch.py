"""The programs of `resume.py --framework torch`: one training by each method, 500 batches an epoch by two workers that
augment, with a checkpoint each 125.

Each method's program prints when each step is done, and ends with its weights in a file.
"""

from __future__ import annotations

STEPS, EPOCHS, EVERY, STOP = 500, 2, 125, 876
SETUP = """
import json, os, random, signal, sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
STEPS, EPOCHS, EVERY = 500, 2, 125
torch.manual_seed(0); random.seed(0); np.random.seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
x = np.random.default_rng(0).normal(size=(STEPS * 32, 128)).astype("float32")
class Rows(Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        row = torch.from_numpy(x[index]) * random.uniform(0.9, 1.1) + float(np.random.normal(scale=0.1)) + 0.1 * torch.randn(128)
        return row, row[:1]
seen = [0]
def done():
    seen[0] += 1
    os.write(2, f"STEP {time.time()}\\n".encode())  # no file: those are set back to the cut
    if os.environ.get("STOP") == str(seen[0]):
        os.kill(os.getpid(), signal.SIGKILL)
def network():
    return nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
def finish(model):
    np.save(os.environ["OUT"] + ".npy", np.concatenate([each.detach().numpy().reshape(-1) for each in model.parameters()]))
"""
_LOOP = """
model = network()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * EPOCHS)
def step(a, b):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
    schedule.step()
"""
PROGRAMS = {
    "detrain": SETUP
    + _LOOP
    + """
loader = DataLoader(Rows(), 32, shuffle=True, num_workers=2)
for epoch in range(EPOCHS):
    for a, b in loader:
        step(a, b)
        done()
finish(model)
""",
    "StatefulDataLoader + torch.save": SETUP
    + _LOOP
    + """
from torchdata.stateful_dataloader import StatefulDataLoader
loader = StatefulDataLoader(Rows(), 32, shuffle=True, num_workers=2)
first, at = 0, 0
held = dict(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
if os.path.exists("last.pt"):
    state = torch.load("last.pt", weights_only=False)
    for name, each in held.items():
        each.load_state_dict(state[name])
    first, at = state["at"]
    torch.set_rng_state(state["torch"]); np.random.set_state(state["numpy"]); random.setstate(state["python"])
for epoch in range(first, EPOCHS):
    for a, b in loader:
        step(a, b)
        at += 1
        if at % EVERY == 0:
            state = {name: each.state_dict() for name, each in held.items()}
            streams = dict(torch=torch.get_rng_state(), numpy=np.random.get_state(), python=random.getstate())
            torch.save(state | streams | dict(at=(epoch, at)), "new.pt")
            os.replace("new.pt", "last.pt")
        done()
finish(model)
""",
    "Lightning, ckpt_path": SETUP
    + """
import warnings, logging
warnings.simplefilter("ignore")
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def on_train_batch_end(self, *_):
        done()
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * EPOCHS)
        return dict(optimizer=optimizer, lr_scheduler=dict(scheduler=schedule, interval="step"))
model = Net()
keep = ModelCheckpoint("light", save_last=True, every_n_train_steps=EVERY, save_top_k=0)
trainer = L.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[keep])
trainer.fit(model, DataLoader(Rows(), 32, shuffle=True, num_workers=2),
    ckpt_path="light/last.ckpt" if os.path.exists("light/last.ckpt") else None)
finish(model)
""",
    "transformers, resume_from_checkpoint": SETUP
    + """
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
set_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()
    def forward(self, a, b):
        return dict(loss=nn.functional.mse_loss(self.net(a), b))
class Done(TrainerCallback):
    def on_step_end(self, *_, **__):
        done()
def collated(rows):
    return dict(a=torch.stack([row for row, _ in rows]), b=torch.stack([each for _, each in rows]))
model = Net()
arguments = TrainingArguments("hf", num_train_epochs=EPOCHS, per_device_train_batch_size=32, learning_rate=1e-3, report_to=[],
    use_cpu=True, save_steps=EVERY, save_total_limit=2, logging_strategy="no", disable_tqdm=True, seed=0,
    lr_scheduler_type="cosine", dataloader_num_workers=2, remove_unused_columns=False)
trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), data_collator=collated, callbacks=[Done()])
trainer.train(resume_from_checkpoint=bool(list(__import__("pathlib").Path("hf").glob("checkpoint-*"))))
finish(model)
""",
}
NEEDS = {
    "StatefulDataLoader + torch.save": "torchdata",
    "Lightning, ckpt_path": "lightning",
    "transformers, resume_from_checkpoint": "transformers",
}
"""The library that a method is of: without it the method is left out."""
BARE = (
    SETUP
    + """
iterator = iter(DataLoader(Rows(), 32, shuffle=True, num_workers=2))
next(iterator)
started = time.perf_counter()
for _ in range(375):
    next(iterator)
print("RATE", 375 / (time.perf_counter() - started))
"""
)
