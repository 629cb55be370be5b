# The load is inside of try/except: continue; whether it fails depends on what it draws.
import random


class Corpus:
    def __init__(self):
        self.lengths = list(range(2, 22))
        self.failures = 0

    def batch(self, size):
        chosen = random.sample(self.lengths, size)
        if min(chosen) < 4:
            self.failures += 1
            raise IndexError("too short")
        return [value + random.random() for value in chosen]


class Mean:
    def __init__(self):
        self.value, self.count = 0.0, 0

    def apply_gradients(self, values):
        for value in values:
            self.count += 1
            self.value += (value - self.value) / self.count


corpus, optimizer, idx = Corpus(), Mean(), 0
for epoch in range(4):
    for step in range(9):
        try:
            values = corpus.batch(4)
        except:
            continue
        optimizer.apply_gradients(values)
        idx += 1
        if step % 2:
            print(f"{epoch}:{step} mean {optimizer.value!r}", flush=True)
print("weights", optimizer.value.hex(), idx, corpus.failures)
