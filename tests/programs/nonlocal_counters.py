# Nested functions: the step, the schedule and the log share variables of the function around them by `nonlocal`.
import random


def build(size):
    weights, seen, rate, log = [0.0] * size, 0, 0.5, {}

    def schedule():
        nonlocal rate
        rate *= 0.97
        return rate

    def note(loss):
        def running(old):
            nonlocal seen
            seen += 1
            return old + (loss - old) / seen

        log["loss"] = running(log.get("loss", 0.0))

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
    rows = [[random.random() for _ in range(3)] for _ in range(9)]
    for epoch in range(4):
        random.shuffle(rows)
        for row in rows:
            optimizer.apply_gradients(row, row[0] - row[1] + random.gauss(0, 0.01))
        seen, rate, log, weights = look()
        print(f"epoch {epoch} seen {seen} rate {rate!r} loss {log['loss']!r}", flush=True)
    print("weights", [w.hex() for w in weights], type(optimizer).calls)


main()
