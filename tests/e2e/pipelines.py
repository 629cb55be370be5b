"""Pipelines of tf.data for test_loaders: one process draws from each and stores its position, another sets its own
pipelines to these positions and goes on.

`python pipelines.py save|load FOLDER` prints for each pipeline either why it has no position, or the elements after it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.tensorflow.data.iterator_positions import NoPosition, read_position, set_position

Data = tf.data.Dataset
ROWS = np.random.default_rng(0).normal(size=(400, 3)).astype("float32")
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(10), tf.range(10) * 2), -1)
VARIABLE = tf.Variable(1.0)


def rows() -> Any:
    return Data.from_tensor_slices(ROWS)


def windows() -> Any:
    return Data.range(500).window(5).shuffle(5).flat_map(lambda window: window.batch(5))


EXACT = {
    "batches, prefetched": lambda: rows().batch(7).prefetch(tf.data.AUTOTUNE),
    "reshuffled, in parallel": lambda: rows().shuffle(50).map(lambda r: r * 2, num_parallel_calls=4).batch(4).prefetch(2),
    "repeated and reshuffled": lambda: rows().take(30).shuffle(30).repeat(8).batch(4),
    "shuffled once": lambda: rows().take(30).shuffle(30, seed=3, reshuffle_each_iteration=False).repeat(8).batch(4),
    "stateless random numbers": lambda: Data.range(400).map(lambda i: tf.random.stateless_normal([2], tf.stack([i, 7]))).batch(4),
    "files, interleaved": lambda: Data.range(9).interleave(lambda i: rows().skip(i).take(20), cycle_length=3, num_parallel_calls=2),
    "prints": lambda: rows().map(lambda r: (tf.print("row", output_stream=sys.stderr), r)[1]).batch(2),
    "ragged": lambda: Data.range(200).map(lambda i: tf.range(i % 5)).ragged_batch(3).shuffle(10),
    "lookups and assertions": lambda: Data.range(400).map(
        lambda i: (tf.debugging.assert_less(i, tf.constant(400, tf.int64)), TABLE.lookup(tf.cast(i % 10, tf.int32)))[1]
    ),
    "lines of text": lambda: Data.from_tensor_slices([__file__]).interleave(tf.data.TextLineDataset).shuffle(9),
    "by length": lambda: Data.range(200).map(tf.range).bucket_by_sequence_length(tf.size, [10, 50], [4, 4, 4]),
    "zipped, filtered, scanned": lambda: (
        Data.zip(rows(), Data.range(400)).filter(lambda r, i: i % 3 > 0).scan(0.0, lambda s, e: (s + e[0][0], s))
    ),
}
REFUSED = {
    "a map that draws": (lambda: rows().map(lambda r: r + tf.random.normal([3])), "draws random numbers (RandomStandardNormal)"),
    "one that draws, inside": (
        lambda: Data.range(9).interleave(lambda i: rows().take(5).map(lambda r: r * tf.random.uniform([3]))),
        "draws random numbers (RandomUniform)",
    ),
    "sets that are shuffled one by one": (
        lambda: Data.range(9).interleave(lambda i: rows().take(20).shuffle(10, seed=5)),
        "has a state of its own (DummySeedGenerator)",
    ),
    "Python in a map": (lambda: rows().map(lambda r: tf.numpy_function(np.sort, [r], tf.float32)), "runs Python (PyFunc)"),
    "from a generator": (
        lambda: Data.from_generator(lambda: iter(range(99)), output_signature=tf.TensorSpec((), tf.int32)),
        "Python",
    ),
    "a variable": (lambda: rows().map(lambda r: r * VARIABLE), "reads a variable"),
    "a cache": (lambda: rows().cache().batch(4), "cache()"),
    "datasets as elements": (windows, "holds datasets as elements"),
    "sampled": (
        lambda: Data.sample_from_datasets([Data.range(100).repeat(), Data.range(200, 300)], seed=4, weights=[0.7, 0.3]),
        "mixed from several",
    ),
    "a huge buffer": (lambda: Data.range(1 << 40).map(lambda i: tf.zeros([4096]) + 1.0).shuffle(1 << 14), "hold 256 MB"),
    "a wide buffer": (lambda: rows().shuffle(10**6).batch(4), "has 1,000,000 places"),
}


def shown(element: Any) -> str:
    return " ".join(repr(np.asarray(part).tolist()) for part in tf.nest.flatten(element, expand_composites=True))


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    tf.random.set_seed(0)
    tf.config.experimental.enable_op_determinism()
    for name, make in {**EXACT, **{name: made for name, (made, _why) in REFUSED.items()}}.items():
        dataset = make()
        iterator, path = iter(dataset), folder / f"{name}.npy"
        if what == "save":
            if name != "a huge buffer":
                for _ in range(11):
                    next(iterator)
            try:
                np.save(path, read_position(iterator, dataset))
            except NoPosition as reason:
                print(f"{name}: {reason}")
                continue
        elif path.exists():
            set_position(iterator, np.load(path))
        else:
            continue
        print(f"{name}: {', '.join(shown(next(iterator)) for _ in range(9))}")


if __name__ == "__main__":
    main()
