"""Trainings that a library runs in the program's place, killed and resumed.

A process is what is killed. The libraries are large, and not installed for the tests: with them, run
`./run.sh test tests/e2e/test_libraries.py --slow`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.e2e.runs import detrain, plain

TRAINER = """
import hashlib, os
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(3)

class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 50, (44, 12))
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}

class Die(TrainerCallback):
    def on_step_begin(self, args, state, control, **_others):
        if os.environ.get("DIE_AT") == str(state.global_step):
            os.kill(os.getpid(), 9)

model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
args = TrainingArguments("out", num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=5e-3, report_to=[], use_cpu=True, save_strategy="no", logging_steps=3, disable_tqdm=True, seed=3)
trainer = Trainer(model=model, args=args, train_dataset=Rows(), callbacks=[Die()])
trainer.train()
print([(row["step"], row.get("loss"), row.get("grad_norm")) for row in trainer.state.log_history])
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_trainer_of_transformers_killed_mid_epoch_ends_as_one_that_never_was(every: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    program = tmp_path / "program.py"
    program.write_text(TRAINER)
    whole = plain(program, cwd=tmp_path)
    assert whole.status == 0, whole.err
    for death in ("9", "15", ""):
        last = detrain("run", "--every", every, program, cwd=tmp_path, DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
    assert "resuming" in last.err
    assert last.out.splitlines()[-2:] == whole.out.splitlines()[-2:]
