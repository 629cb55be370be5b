import os
import signal

import numpy as np
import penny

rows = np.random.default_rng(1).normal(size=(64, 5))
wanted = rows.sum(1, keepdims=True)
layer = penny.Linear(5, 1, dropout=0.2)
optimizer = penny.Momentum([layer.weight], rate=0.01)
best, history = None, []
for epoch in range(5):
    total = 0.0
    for batch, start in enumerate(range(0, 64, 8)):
        loss = layer.loss(rows[start : start + 8], wanted[start : start + 8])
        optimizer.step()
        total += loss
        history.append(loss)
        if os.environ.get("DIE_AT") == f"{epoch}:{batch}":
            os.kill(os.getpid(), signal.SIGKILL)
    if best is None or total < best:
        best = total
    print(epoch, total, best, optimizer.steps, len(history), layer.weight.data.tobytes().hex(), flush=True)
