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


def test_a_small_value_is_found_beside_a_state_that_is_large() -> None:
    """What one trace may write is a limit for each value, not for all that the program holds."""
    texts, scale = [str(number) * 20 for number in range(20_000)], 2.0

    found = CapturedReads(Births()).reads(tf.function(lambda: len(texts) * scale), None)

    assert (("variable", "scale"), {"value": 2.0}) in [(way[-1], value) for way, value in found]


def test_what_functions_and_their_maker_lead_to_is_found_once() -> None:
    held = Held(logging.Logger("held"))

    found = CapturedReads(Births()).reads(tf.function(lambda: held.scale), held)

    assert [value for _, value in found if value == {"value": 2.0}] == [{"value": 2.0}]
