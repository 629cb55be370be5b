"""What a program takes from outside, and what keeps a state in its pipelines, by its source alone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import pytest

from detrain.instrument.outside_inputs import Input, lifted_random_ops, outside_inputs, stateful_stages


def found(look: Callable[[Mapping[str, ast.Module]], list[Input]], text: str) -> list[str]:
    return [str(each) for each in look({"/p/train.py": ast.parse(text)})]


@pytest.mark.parametrize(
    ("text", "name", "done"),
    [
        ("import time\nseed = int(time.time())", "clock: time.time (train.py:2)", "recorded"),
        ("from time import time_ns as now\nnow()", "clock: time.time_ns (train.py:2)", "recorded"),
        ("import os\nos.urandom(4)", "entropy: os.urandom", "recorded"),
        ("from uuid import uuid4\nuuid4()", "entropy: uuid.uuid4", "recorded"),
        ("import secrets\nsecrets.randbits(9)", "entropy: secrets.randbits", "in loops drawn from"),
        ("import numpy as np\nnp.random.default_rng()", "unseeded generator: numpy.random.default_rng", "its state is in each"),
        ("from numpy.random import RandomState\nRandomState()", "unseeded generator: numpy.random.RandomState", "its state"),
        ("import random\nrandom.Random()", "unseeded generator: random.Random", "its state is in each"),
        ("import random\nrandom.seed()", "unseeded generator: random.seed", "its seed is recorded"),
        ("import numpy as np\nnp.random.seed(None)", "unseeded generator: numpy.random.seed", "its seed is recorded"),
        ("import os\nos.listdir('.')", "listing: os.listdir", "in the order of names"),
        ("import glob\nglob.glob('*')", "listing: glob.glob", "in the order of names"),
        ("import pathlib\nfor p in pathlib.Path().iterdir(): pass", "listing: .iterdir", "in the order of names"),
        ("import tensorflow as tf\ntf.io.gfile.listdir('.')", "listing: tensorflow.io.gfile.listdir", "NOT FIXED"),
        ("import tensorflow as tf\ntf.timestamp()", "clock: tensorflow.timestamp", "NOT FIXED"),
        ("from datetime import datetime\ndatetime.now()", "clock: datetime.datetime.now", "recorded"),
        ("for x in {1, 2}: pass", "hash: order of a set (train.py:1)", "the hash seed is fixed"),
        ("x = [y for y in set(z)]", "hash: order of a set", "the hash seed is fixed"),
        ("hash('a')", "hash: hash (train.py:1)", "the hash seed is fixed"),
    ],
)
def test_an_input_is_found_and_what_is_done_about_it_is_said(text: str, name: str, done: str) -> None:
    [line] = found(outside_inputs, text)

    assert line.startswith(name)
    assert done in line


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nnp.random.default_rng(3)",
        "import random\nrandom.Random(4)",
        "import random\nrandom.seed(4)",
        "class time:\n    time = len\ntime.time('')",
        "clock.time()",
        "for x in [1, 2]: pass",
        "def hash_of(x): return x.hash(1)",
    ],
)
def test_what_is_seeded_or_only_named_alike_is_no_input(text: str) -> None:
    assert found(outside_inputs, text) == []


def test_places_of_one_input_are_told_together() -> None:
    text = "import time\n" + "time.time()\n" * 6

    assert found(outside_inputs, text)[0].startswith("clock: time.time (train.py:2, train.py:3, train.py:4, train.py:5 and 2 more)")


PIPELINE = """
import tensorflow as tf
def noisy(row):
    return tf.image.random_flip_left_right(row)
data = tf.data.Dataset.from_generator(numbers, tf.int32).map(noisy).map(lambda row: row + tf.random.normal([3])).cache()
data = data.map(lambda row: row + tf.random.stateless_normal([3], [1, 2]))
@tf.function
def step(x):
    return tf.nn.dropout(x + tf.random.uniform([3]), 0.5)
tf.random.set_seed(3)
"""


def test_stages_with_a_state_and_random_ops_that_are_lifted_are_told_apart() -> None:
    stages, lifted = found(stateful_stages, PIPELINE), found(lifted_random_ops, PIPELINE)

    assert [line.partition(" (")[0] for line in stages] == [
        "loader: .cache()",
        "loader: tf.data.Dataset.from_generator",
        "loader: tf.image.random_flip_left_right",
        "loader: tf.random.normal",
    ]
    assert [line.partition(" (")[0] for line in lifted] == ["random op: tf.nn.dropout", "random op: tf.random.uniform"]
    assert "other numbers than under plain Python" in lifted[0]
