# A list of losses in memory, a CSV file that stays open, a log opened anew for each line, and Python's logging.
import csv
import logging
import random

logging.basicConfig(filename="train.log", format="%(message)s", level=logging.INFO)


class Scalar:
    def __init__(self):
        self.weight, self.steps = 0.0, 0

    def apply_gradients(self, x, y):
        self.steps += 1
        self.weight -= 0.1 * (self.weight * x - y) * x
        return (self.weight * x - y) ** 2


def say(line):
    with open("lines.txt", "a") as log:
        log.write(line + "\n")


optimizer, losses = Scalar(), []
data = [(x := random.gauss(0, 1), 3 * x + random.gauss(0, 0.1)) for _ in range(12)]
with open("losses.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["epoch", "step", "loss"])
    for epoch in range(4):
        random.shuffle(data)
        for step, (x, y) in enumerate(data):
            losses.append(optimizer.apply_gradients(x, y))
            table.writerow([epoch, step, repr(losses[-1])])
            if step % 4 == 1:
                say(f"{epoch}:{step} {losses[-1]!r}")
                logging.info("%d %d %r", epoch, step, sum(losses) / len(losses))
        file.flush()
        print(f"epoch {epoch} {len(losses)} losses, last {losses[-1]!r}", flush=True)
for name in ("losses.csv", "lines.txt", "train.log"):
    print(name, len(open(name).read().splitlines()))
print("weights", optimizer.weight.hex(), sum(losses).hex())
