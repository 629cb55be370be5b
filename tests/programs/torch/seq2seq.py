"""An encoder and a decoder with teacher forcing by chance, batches of one length, gradients clipped."""
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(15)
random.seed(15)
rows = [torch.randint(1, 12, (random.randint(3, 7),)) for _ in range(30)]
loader = DataLoader(rows, 5, shuffle=True, collate_fn=lambda each: (pad_sequence(each), torch.tensor([len(row) for row in each])))
table, encoder, decoder, head = nn.Embedding(12, 8, padding_idx=0), nn.GRU(8, 10), nn.GRUCell(8, 10), nn.Linear(10, 12)
parts = nn.ModuleList([table, encoder, decoder, head])
optimizer = torch.optim.Adam(parts.parameters(), 1e-2)
for epoch in range(4):  # <- epoch loop
    for words, lengths in loader:  # <- batch loop
        _, hidden = encoder(pack_padded_sequence(table(words), lengths, enforce_sorted=False))
        state, token, loss = hidden[0], torch.zeros(words.shape[1], dtype=torch.long), 0.0
        for target in words.flip(0):
            state = decoder(table(token), state)
            out = head(state)
            loss = loss + nn.functional.cross_entropy(out, target, ignore_index=0, reduction="sum")
            token = target if random.random() < 0.5 else out.argmax(1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 2.0)
        optimizer.step()
    print(epoch, loss.item(), random.random())
