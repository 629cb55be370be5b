# Progress bars around both loops, with postfixes; the bar is asked how far it is.
import random

from tqdm import tqdm, trange


class Scale:
    def __init__(self):
        self.value = 1.0

    def apply_gradients(self, x):
        self.value += 0.01 * (x - self.value)


optimizer, rows = Scale(), [random.random() for _ in range(10)]
total = 0
for epoch in trange(4, desc="epochs"):
    random.shuffle(rows)
    bar = tqdm(enumerate(zip(rows, rows[1:])), total=9, leave=False)
    for step, (x, y) in bar:
        optimizer.apply_gradients(x * y + random.gauss(0, 1e-3))
        bar.set_postfix(value=optimizer.value)
        total += 1
    print(f"epoch {epoch} value {optimizer.value!r} bar {bar.n} of {bar.total} total {total}", flush=True)
print("weights", optimizer.value.hex())
