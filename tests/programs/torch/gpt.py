"""After nanoGPT: steps without epochs, batches drawn by index, warm-up by a function, accumulation, clipping, the best
loss decides about saving, weights tied.
"""
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1337)
text = "the quick brown fox jumps over the lazy dog. " * 20
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
block, batch, n_embd = 8, 4, 16


def get_batch(split):
    part = data[:700] if split == "train" else data[700:]
    ix = torch.randint(len(part) - block, (batch,))
    x = torch.stack([part[i : i + block] for i in ix])
    y = torch.stack([part[i + 1 : i + 1 + block] for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block, n_embd)
        self.block = nn.TransformerEncoderLayer(n_embd, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(n_embd, len(chars), bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block), persistent=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(block))
        logits = self.head(self.block(x, self.mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, len(chars)), targets.view(-1))


def get_lr(it):
    return 1e-2 * (it + 1) / 4 if it < 4 else 1e-3 + 0.5 * (1 + math.cos(math.pi * it / 20)) * 9e-3


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = {split: torch.stack([model(*get_batch(split)) for _ in range(2)]).mean().item() for split in ("train", "val")}
    model.train()
    return found


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, 1e-2, betas=(0.9, 0.95), fused=True)
iter_num, best_val_loss = 0, 1e9
X, Y = get_batch("train")
while True:  # <- batch loop
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % 5 == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.6f} val {losses['val']:.6f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num > 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter": iter_num}, "ckpt.pt")
    for _ in range(3):
        loss = model(X, Y) / 3
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > 16:
        break
print(best_val_loss, loss.item(), os.path.exists("ckpt.pt"))
