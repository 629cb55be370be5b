"""Pieces of music as event tokens, and random windows of them."""

import pathlib
import random

import numpy as np

PAD, END, VOCABULARY = 388, 389, 390


class Data:
    """The pieces of a folder: one `.npy` of uint16 tokens a piece. The first four fifths train, the rest evaluate."""

    def __init__(self, folder):
        self.files = sorted(str(path) for path in pathlib.Path(folder).glob("*.npy"))
        if not self.files:
            raise SystemExit(f"no .npy files in {folder}")
        train = max(len(self.files) * 4 // 5, 1)
        self.file_dict = {"train": self.files[:train], "eval": self.files[train:] or self.files}

    def __repr__(self):
        return f"<Data: {len(self.files)} pieces>"

    def slide_seq2seq_batch(self, batch_size, length, mode="train"):
        """Return (x, y), each [batch, length] int32: windows of random pieces, and the same one token later."""
        names = random.sample(self.file_dict[mode], k=min(batch_size, len(self.file_dict[mode])))
        data = np.array([self._window(name, length + 1) for name in names], dtype=np.int32)
        return data[:, :-1], data[:, 1:]

    def _window(self, name, length):
        piece = np.load(name)
        if len(piece) < length // 2:
            raise ValueError(f"{name} has only {len(piece)} events")
        if len(piece) < length:
            return np.concatenate([piece, [END], np.full(length - len(piece) - 1, PAD)])
        start = random.randrange(len(piece) - length + 1)
        return piece[start : start + length]
