"""What a replay proves: whatever a record says of a fault and of the steps behind it is compared."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from detrain.base.errors import FaultInvalid, ReplayDiffers
from detrain.campaign.trial import recorded_fault
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import compare, digest_of, elements_of, steps_of
from detrain.faults.experiment import Alarm, Experiment, Firing, Injection
from detrain.faults.record import Element, FaultRecord
from detrain.faults.sites import OperandShape, Site
from detrain.runtime.observers.experiment_run import StepLine

ONE = np.array([1], "<i8").tobytes()
INJECTION = Injection(
    site="s", operand="output", worker=0, dtype="int8", shape=(2, 2), positions=ONE, sources=ONE, keep=b"\0", flip=b"\5"
)
DONE = TrialResult(0, (StepLine(0, 0, 1, {"loss": 2.0}, "state"),), "until", fired=Firing(1, b"\3", b"\5"))
RECORD = FaultRecord(
    program="program",
    arguments=(),
    sources={},
    environment={},
    model="SET:5",
    seed=0,
    experiment=Experiment(log="", injection=INJECTION, at=(0, 0, 1), count=1),
    elements=elements_of(INJECTION, DONE.fired),  # type: ignore[arg-type]
    elements_digest=digest_of(DONE.fired),
    fired=1,
    steps=steps_of(DONE, (0, 0, 1)),
    end="until",
    outcome="masked",
)


def test_a_replay_with_all_that_the_record_says_is_identical() -> None:
    assert RECORD.elements == (Element((0, 1), "03", "05"),)
    compare(RECORD, RECORD)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("elements", (Element((0, 1), "03", "06"),), "what they became"),
        ("elements", (Element((1, 1), "03", "05"),), "positions"),
        ("elements_digest", "0", "what they became"),
        ("fired", 2, "put in 1 times, the record says 2"),
        ("steps", (), "had 1 steps"),
        ("end", "program", "ended by 'until', the record says 'program'"),
        ("outcome", "crash", "the outcome is 'masked', the record says 'crash'"),
        ("alarm", Alarm(0, "v", 2.0, 1.0, "seen"), "first alarm is None"),
    ],
)
def test_a_record_that_says_something_else_is_not_what_was_replayed(name: str, value: Any, words: str) -> None:
    with pytest.raises(ReplayDiffers, match=words):
        compare(msgspec.structs.replace(RECORD, **{name: value}), RECORD)


def test_a_fault_in_what_cannot_be_is_refused() -> None:
    INJECTION.check()
    with pytest.raises(FaultInvalid, match="the 'bias' of an op"):
        msgspec.structs.replace(INJECTION, operand="bias").check()
    for shape in ((1 << 62, 4), (10**12, 10**12)):
        with pytest.raises(FaultInvalid, match="a fault in int8"):
            msgspec.structs.replace(INJECTION, shape=shape).check()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("injection", None, "no fault"),
        ("is_armed", False, "no fault"),
        ("is_profile", True, "no fault"),
        ("steps", -1, "of -1 steps"),
        ("occurrence", -1, "in run -1"),
        ("at", (0, 0, -1), "from 0:-1 on"),
        ("until", (0, 0, 0), "ends before its fault"),
        ("count", 0, "ends before its fault"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(name: str, value: Any, words: str) -> None:
    RECORD.experiment.check()
    with pytest.raises(FaultInvalid, match=words):
        msgspec.structs.replace(RECORD.experiment, **{name: value}).check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"shape": (4,)}, r"no input of int8\[4\]"),
        ({"operand": "weight"}, "no weight"),
        ({"index": 1}, "no input at place 1"),
        ({"worker": 1}, "no replica 1"),
        ({"limited": (6).to_bytes(8, "little")}, "no output 6"),
        ({"limited": (-1).to_bytes(8, "little", signed=True)}, "no output -1"),
    ],
)
def test_a_record_whose_fault_does_not_fit_its_site_is_refused(changes: dict[str, Any], words: str) -> None:
    operands = {"input": OperandShape(0, (2, 2), "int8"), "output": OperandShape(0, (2, 3), "int8")}
    site = Site("s", "layer", "MatMul", "forward", "", operands, 1, is_alive=True)
    given = {"operand": "input", "index": 0, "limited": (5).to_bytes(8, "little"), **changes}
    injection = msgspec.structs.replace(INJECTION, **given)
    wanted = recorded_fault(RECORD, injection)
    if words:
        with pytest.raises(FaultInvalid, match=words):
            wanted.among([site])
    else:
        assert wanted.among([site]) is injection
