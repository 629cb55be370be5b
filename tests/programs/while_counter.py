# `while` loops whose counters move in the body, by strides that the body chooses; `break` on a condition.
import numpy as np

rng = np.random.default_rng(2)
text = rng.integers(0, 9, size=60)
counts = np.ones((9, 9))


class Counting:
    def apply_gradients(self, pairs):
        for a, b in pairs:
            counts[a, b] += 1
        counts[:] = counts / counts.sum() * 81


optimizer = Counting()
turn, best, surprises = 0, float("inf"), []
while turn < 6:
    position, surprise = 0, 0.0
    while position < len(text) - 5:
        stride = 3 + int(np.random.randint(0, 4))
        piece = text[position : position + stride]
        if piece.sum() == 0:
            position += 1
            continue
        pairs = list(zip(piece, piece[1:]))
        surprise -= float(sum(np.log(counts[a, b] / counts[a].sum()) for a, b in pairs))
        optimizer.apply_gradients(pairs)
        position += stride
    turn += 1
    surprises.append(surprise)
    print(f"turn {turn} surprise {surprise!r} best {best!r}", flush=True)
    if turn > 3 and surprise > best * 1.2:
        break
    best = min(best, surprise)
print("weights", counts.tobytes().hex()[:64], float(counts.sum()).hex(), surprises)
