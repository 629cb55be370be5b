"""Small training programs without a framework, so that a run takes half a second. They kill themselves at `$DIE_AT`."""

from __future__ import annotations


class Head(str):
    """The beginning of a program: called with the rest, it returns the program."""

    __slots__ = ()

    def __call__(self, rest: str) -> Head:
        return Head(self + rest)


DIE = Head("""\
import os, signal, sys

def die(where):
    if os.environ.get("DIE_AT") == where:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

""")
STRIKE = Head("""\
import os

FAULTS = dict(each.split(":") for each in os.environ.get("FAULTS", "").split(",") if each)
turn = 0

def strike():
    global turn
    kind, mark = FAULTS.get(str(turn), ""), f"struck-{turn}"
    is_due = kind and ("again" in os.environ or not os.path.exists(mark))
    if is_due:
        os.close(os.open(mark, os.O_CREAT))
    turn += 1
    return kind if is_due else ""

""")
"""The beginning of a program that puts faults into its own steps, each once: `strike` returns this step's kind."""
PRELUDE = DIE("""\
import random
import numpy as np

class Optimizer:
    def __init__(self, weights):
        self.weights, self.velocity, self.steps = weights, np.zeros_like(weights), 0

    def apply_gradients(self, gradient):
        self.velocity = 0.9 * self.velocity + gradient
        self.weights -= 0.01 * self.velocity
        self.steps += 1

def show(weights):
    print("weights", weights.tobytes().hex())
""")

TENSORFLOW = DIE("""\
import hashlib, random
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

def show(*variables):
    print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in variables)).hexdigest())

""")
"""The beginning of a program with TensorFlow."""

FOR_LOOPS = (
    PRELUDE
    + '''
class Loader:
    """Permutes at the start of an epoch, from the global stream that the bodies also draw from."""
    def __init__(self, n):
        self.data = np.arange(n * 3, dtype=float).reshape(n, 3)
    def __iter__(self):
        order = np.random.permutation(len(self.data))
        for i in order:
            yield self.data[i] + np.random.normal(size=3)

def main():
    weights = np.ones(3)
    optimizer = Optimizer(weights)
    loader = Loader(8)
    best, history, counts = float("inf"), [], {"batches": 0}
    for epoch in range(4):
        total = 0.0
        for step, x in enumerate(loader):
            noise = np.random.normal() * random.random()
            gradient = x * 1e-3 + noise
            optimizer.apply_gradients(gradient)
            total += float(np.abs(optimizer.weights).sum())
            counts["batches"] += 1
            die(f"{epoch}:{step}")
        if total < best:
            best = total
        history.append(total)
        print(f"epoch {epoch} loss {total!r} best {best!r} steps {optimizer.steps} batches {counts['batches']}", flush=True)
    print("history", [value.hex() for value in history])
    show(optimizer.weights)

main()
'''
)

WHILE_LOOPS = PRELUDE("""
data = np.random.default_rng(3).normal(size=(12, 3))
weights = np.ones(3)
optimizer = Optimizer(weights)
epoch = 0
while epoch < 4:
    np.random.shuffle(data)
    i = 0
    while i < len(data):
        batch = data[i:i + 2]
        optimizer.apply_gradients(batch.sum(axis=0) * random.random())
        die(f"{epoch}:{i // 2}")
        i += 2
    epoch += 1
    print(f"epoch {epoch} loss {float(np.abs(optimizer.weights).sum())!r}", flush=True)
show(optimizer.weights)
""")

TRY_CONTINUE = PRELUDE("""
class Pool:
    def __init__(self):
        self.items = list(range(20))
        self.served = 0
    def batch(self, mode="train"):
        picked = random.sample(self.items, 3)
        if mode == "train" and sum(picked) % 4 == 0:
            raise IndexError("no such batch")
        self.served += 1
        return np.array(picked, dtype=float)

pool = Pool()
optimizer = Optimizer(np.ones(3))
idx = 0
for e in range(4):
    for b in range(7):
        try:
            x = pool.batch()
        except:
            continue
        optimizer.apply_gradients(x * 1e-3)
        die(f"{e}:{b}")
        if b % 3 == 0:
            held_out = pool.batch("eval")
            idx += 1
            print(f"epoch {e} {b} loss {float(optimizer.weights @ held_out)!r}", flush=True)
print("served", pool.served, "idx", idx)
show(optimizer.weights)
""")

PHASES = PRELUDE("""
def train(optimizer, epochs, data, rng):
    losses = []
    for epoch in range(epochs):
        rng.shuffle(data)
        for step, x in enumerate(data):
            optimizer.apply_gradients(np.full(3, x) * rng.random())
            die(f"{optimizer.name}:{epoch}:{step}")
        losses.append(float(np.abs(optimizer.weights).sum()))
        print(f"{optimizer.name} epoch {epoch} loss {losses[-1]!r}", flush=True)
        if epoch == 2 and optimizer.name == "fold1":
            break
    return losses

rng = random.Random(5)
scores = {}
for fold in range(3):
    optimizer = Optimizer(np.ones(3))
    optimizer.name = f"fold{fold}"
    scores[fold] = train(optimizer, 4, [1e-3 * i for i in range(5)], rng)
    print("fold", fold, "score", scores[fold][-1])
print(sorted(scores.items()))
show(optimizer.weights)
""")

ONE_LOOP = PRELUDE("""
def stream():
    state = random.random()
    while True:
        state = (state * 7 + random.random()) % 1.0
        yield state

optimizer = Optimizer(np.ones(3))
source = stream()
for step in range(30):
    x = next(source)
    optimizer.apply_gradients(np.full(3, x) * random.random())
    die(f"0:{step}")
    if step % 10 == 9:
        print(f"step {step} loss {float(np.abs(optimizer.weights).sum())!r}", flush=True)
show(optimizer.weights)
""")

METHODS = PRELUDE("""
class Trainer:
    total_steps = 0
    def __init__(self):
        self.optimizer = Optimizer(np.ones(3))
        self.rng = np.random.default_rng(11)
        self.seen = set()
        self.recent = []
        self.log = {"loss": []}
        self.alias = self.log["loss"]

    def batches(self):
        for i in self.rng.permutation(6):
            yield int(i)

    def step(self, x):
        self.optimizer.apply_gradients(np.full(3, x * 1e-2) + self.rng.normal(size=3))
        Trainer.total_steps += 1
        self.seen.add(x)
        self.recent = [*self.recent[-2:], x]

    def train(self, epochs):
        counter = 0
        def count():
            nonlocal counter
            counter += 1
        for epoch in range(epochs):
            for i, x in enumerate(self.batches()):
                self.step(x)
                count()
                die(f"{epoch}:{i}")
            self.alias.append(float(np.abs(self.optimizer.weights).sum()))
            print(f"epoch {epoch} loss {self.log['loss'][-1]!r} recent {self.recent} counted {counter}", flush=True)
        return counter

if __name__ == "__main__":
    trainer = Trainer()
    print(trainer.train(4), Trainer.total_steps, sorted(trainer.seen), len(trainer.log["loss"]))
    show(trainer.optimizer.weights)
""")

SETTINGS = PRELUDE("""
import ctypes, decimal, gc, locale, logging, warnings
optimizer = Optimizer(np.ones(3))
libc, rings = ctypes.CDLL(None), [0]
def ring(*_):
    rings[0] += 1
os.environ["KEPT"] = os.environ["TURNS"] = "0"
os.environ["GONE"] = "yes"
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
        os.environ["TURNS"] = str(int(os.environ["TURNS"]) + 1)
        if (epoch, step) == (0, 1):
            decimal.getcontext().prec, decimal.getcontext().traps[decimal.Inexact] = 5, False
            np.seterr(divide="raise")
            np.set_printoptions(precision=3, floatmode="fixed")
            locale.setlocale(locale.LC_NUMERIC, "C.UTF-8" if locale.setlocale(locale.LC_NUMERIC) == "C" else "C")
            sys.setrecursionlimit(sys.getrecursionlimit() + 17)
            del os.environ["GONE"]
            logging.getLogger("some").setLevel(logging.ERROR)
            os.umask(0o27)
            os.makedirs("folder", exist_ok=True)
            os.chdir("folder")
            warnings.filterwarnings("error", "never", UserWarning)
            signal.signal(signal.SIGUSR1, ring)
            np.seterrcall(ring)
            sys.path.append("elsewhere")
            logging.disable(logging.ERROR)
            gc.set_threshold(900, 11, 12)
            sys.setswitchinterval(0.01)
        if rings[0] or (epoch, step) > (0, 1):
            os.kill(os.getpid(), signal.SIGUSR1)
        optimizer.weights += libc.rand() % 100
        die(f"{epoch}:{step}")
    try:
        np.ones(1) / np.zeros(1)
        how = "quiet"
    except FloatingPointError:
        how = "raised"
    third = decimal.Decimal(1) / 3
    print(epoch, third, how, optimizer.weights, locale.setlocale(locale.LC_NUMERIC), sys.getrecursionlimit(), flush=True)
    print(oct(os.umask(0o27)), os.getcwd()[-6:], warnings.filters[0][:3], rings, np.geterrcall() is ring, sys.path[-1][-6:])
    print(os.environ["TURNS"], os.environ["KEPT"], os.environ.get("GONE"), logging.getLogger("some").level, flush=True)
    print(logging.root.manager.disable, gc.get_threshold(), round(sys.getswitchinterval(), 3), flush=True)
show(optimizer.weights)
""")

HELD_BY_C = PRELUDE("""
import sqlite3
class Source:
    def __init__(self):
        self.calls, self.stream = 0, np.random.default_rng(5)
    def __call__(self):
        self.calls += 1
        return self.stream.normal() + self.calls
def main():
    optimizer, source, calls = Optimizer(np.ones(3)), Source(), [0]
    def second():
        calls[0] += 1
        return float(calls[0])
    database = sqlite3.connect(":memory:")
    database.create_function("load", 0, source)
    database.create_function("second", 0, second)
    for epoch in range(3):
        for step in range(4):
            x, y = database.execute("select load(), second()").fetchone()
            optimizer.apply_gradients(np.array([x, y, 1.0]))
            die(f"{epoch}:{step}")
        print(epoch, x, y, flush=True)
    show(optimizer.weights)
main()
""")

ALL = {
    "held_by_c": HELD_BY_C,
    "for_loops": FOR_LOOPS,
    "while_loops": WHILE_LOOPS,
    "try_continue": TRY_CONTINUE,
    "phases": PHASES,
    "one_loop": ONE_LOOP,
    "methods": METHODS,
    "settings": SETTINGS,
}
