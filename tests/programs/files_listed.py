# Training files are made, listed in whatever order the system has them, shuffled, and read one by one.
import glob
import os
import random

import numpy as np

os.makedirs("shards", exist_ok=True)
for name in np.random.permutation(9):
    np.save(f"shards/part-{name}.npy", np.random.normal(size=(4, 3)))


class Averaging:
    def __init__(self):
        self.mean, self.count = np.zeros(3), 0

    def apply_gradients(self, rows):
        for row in rows:
            self.count += 1
            self.mean += (row - self.mean) / self.count * (1 + 0.1 * random.random())


optimizer = Averaging()
files = glob.glob("shards/*.npy")
again = [entry.path for entry in os.scandir("shards")]
read = []
for epoch in range(4):
    random.shuffle(files)
    for file in files:
        rows = np.load(file)
        optimizer.apply_gradients(rows + np.random.normal(scale=0.01))
        read.append(os.path.basename(file))
    print(f"epoch {epoch} last {file} first {again[0]} count {optimizer.count}", flush=True)
print("weights", optimizer.mean.tobytes().hex(), "".join(name[5] for name in read))
