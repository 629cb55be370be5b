"""What a compiled function reads of Python as it is traced."""

import logging
from pathlib import Path

import tensorflow as tf

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.tracing.captured_python import CapturedReads


class Held:
    def __init__(self, log: logging.Logger) -> None:
        self.scale, self.log = 2.0, log


def test_it_keeps_out_of_what_is_a_librarys(tmp_path: Path) -> None:
    """A logger leads to its handlers, these to `open`, and in a run that leads to detrain's own state."""
    log = logging.Logger("held")
    log.addHandler(logging.FileHandler(tmp_path / "held.log"))
    held = Held(log)

    found = CapturedReads(Births()).reads(tf.function(lambda: held.log.level + held.scale), None)

    assert [(way[-1], value) for way, value in found] == [(("attribute", "scale"), {"value": 2.0})]


def test_values_are_in_place_for_as_long_as_it_is_traced_and_then_as_they_were() -> None:
    held = Held(logging.Logger("held"))
    function, reads = tf.function(lambda: held.scale), CapturedReads(Births())
    values = reads.reads(function, None)
    held.scale = 5.0

    with reads.as_read(function, None, values):
        assert held.scale == 2.0
    assert held.scale == 5.0
