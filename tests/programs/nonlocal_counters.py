# Nested functions: the step, the schedule and the log share variables of the function around them by `nonlocal`, and the classes
# of what is collected are made in a function.
import collections
import dataclasses
import enum
import random


def build(size):
    weights, seen, rate, log = [0.0] * size, 0, 0.5, {}

    def schedule():
        nonlocal rate
        rate *= 0.97
        return rate

    def note(loss):
        nonlocal seen
        seen += 1
        log["loss"] = log.get("loss", 0.0) + (loss - log.get("loss", 0.0)) / seen

    class Step:
        calls = 0

        def apply_gradients(self, row, target):
            Step.calls += 1
            error = sum(w * v for w, v in zip(weights, row)) - target
            for place, value in enumerate(row):
                weights[place] -= schedule() * error * value
            note(error * error)

    return Step(), lambda: (seen, rate, dict(log), list(weights))


def main():
    optimizer, look = build(3)
    Row = collections.namedtuple("Row", "number first")
    Sign = enum.Enum("Sign", ["MINUS", "PLUS"])

    @dataclasses.dataclass
    class Best:
        row: Row
        of: list = dataclasses.field(default_factory=list)

    past, signs, rows = [], {}, [[random.random() for _ in range(3)] for _ in range(9)]
    for epoch in range(4):
        random.shuffle(rows)
        for number, row in enumerate(rows):
            optimizer.apply_gradients(row, row[0] - row[1] + random.gauss(0, 0.01))
            signs[epoch, number] = Sign.PLUS if row[0] > 0.5 else Sign.MINUS
            past.append(Best(Row(number, row[0]), [row]))
        print(past[0], past[-1].row, isinstance(past[0], Best), [signs[epoch, number] for number in range(3)])
        seen, rate, log, weights = look()
        print(f"epoch {epoch} seen {seen} rate {rate!r} loss {log['loss']!r}", flush=True)
    print("weights", [w.hex() for w in weights], type(optimizer).calls)


main()
