# The order of batches is that of sets of strings: the hash seed decides it, and what was put in and taken out before.
import numpy as np

words = {f"word-{n}" for n in np.random.permutation(24)}
rare, known = {"word-3", "word-7"}, {}


class Table:
    def __init__(self):
        self.vectors = {word: np.full(2, len(word) * 0.1) for word in sorted(words)}

    def apply_gradients(self, group, turn):
        for word in group:
            self.vectors[word] = self.vectors[word] * 0.9 + turn * 0.01
            known.setdefault(word, len(known))


def groups(source):
    chosen = []
    for word in source:
        chosen.append(word)
        if len(chosen) == 4:
            yield frozenset(chosen)
            chosen = []


optimizer = Table()
for epoch in range(4):
    for turn, group in enumerate(groups(words)):
        optimizer.apply_gradients(group, turn)
    gone = words.pop()
    words |= {f"new-{epoch}-{n}" for n in range(2)} - rare
    optimizer.vectors.update({f"new-{epoch}-{n}": np.ones(2) * n for n in range(2)})
    rare.add(gone)
    print(f"epoch {epoch} gone {gone} rare {list(rare)} first {next(iter(words))}", flush=True)
print("weights", b"".join(v.tobytes() for v in optimizer.vectors.values()).hex()[:48], list(known), list(words))
