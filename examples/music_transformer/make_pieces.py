"""Make the small pieces that come with the example: arpeggios over a wandering bass, as note, time and velocity events.

Tokens: 0-127 note on, 128-255 note off, 256-355 time shifts of 10 ms, 356-387 velocities. One piece is too short on purpose.
"""

import pathlib

import numpy as np

CHORDS = [(0, 4, 7), (9, 12, 16), (5, 9, 12), (7, 11, 14), (2, 5, 9), (4, 7, 11)]


def make_piece(seed, bars):
    rng = np.random.default_rng(seed)
    key, tokens = int(rng.integers(48, 60)), []
    for _ in range(bars):
        chord = CHORDS[rng.integers(len(CHORDS))]
        tokens.append(356 + int(rng.integers(14, 26)))
        for _ in range(4):
            note = key + chord[rng.integers(3)] + 12 * int(rng.integers(0, 2))
            tokens += [note, 256 + int(rng.integers(8, 25)), 128 + note]
    return np.array(tokens, dtype=np.uint16)


def main():
    folder = pathlib.Path(__file__).parent / "pieces"
    folder.mkdir(exist_ok=True)
    for number in range(12):
        bars = 1 if number == 3 else 24 + 4 * number
        np.save(folder / f"piece_{number:02d}.npy", make_piece(number, bars))


if __name__ == "__main__":
    main()
