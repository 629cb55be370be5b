"""Categories: the order of decisions against the table of definitions, written down again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.campaign.categories import (
    Category,
    Given,
    are_only_warnings,
    at_horizon,
    category_of,
    compared,
    differing_lines,
    known_error,
    nvbitfi_number,
    time_limit,
)

GIVEN = st.builds(
    Given,
    is_timeout=st.booleans(),
    status=st.sampled_from([0, 0, 0, 1, -11]),
    exception=st.sampled_from(["", "", "InvalidArgumentError"]),
    caught=st.sampled_from(["", "InternalError"]),
    liveness=st.sampled_from(["", "", "never read", "written first"]),
    text=st.sampled_from(["", "", "CUDA_ERROR_ILLEGAL_ADDRESS"]),
    is_device_error=st.booleans(),
    has_failed_check=st.booleans(),
    has_other_files=st.booleans(),
    has_other_stdout=st.booleans(),
    has_other_stderr=st.booleans(),
    has_only_warnings=st.booleans(),
    is_judged=st.sampled_from([True, True, False]),
)

# The page: which number, and when. The first that holds is it.
PAGE: list[tuple[int, Callable[[Given], bool]]] = [
    (4, lambda g: g.is_timeout),
    (5, lambda g: g.status != 0 or g.exception != ""),
    (2, lambda g: g.liveness == "written first"),
    (1, lambda g: g.liveness == "never read"),
    (9, lambda g: "CUDA_ERROR" in g.text),
    (18, lambda g: not g.is_judged),
    (14, lambda g: g.has_failed_check and g.is_device_error),
    (17, lambda g: g.has_failed_check),
    (13, lambda g: g.has_other_files and g.is_device_error),
    (7, lambda g: g.has_other_files and g.caught != ""),
    (16, lambda g: g.has_other_files),
    (12, lambda g: g.has_other_stdout and g.is_device_error),
    (7, lambda g: g.has_other_stdout and g.caught != ""),
    (15, lambda g: g.has_other_stdout),
    (11, lambda g: g.has_other_stderr and g.is_device_error),
    (8, lambda g: g.has_other_stderr and g.has_only_warnings),
    (10, lambda g: g.has_other_stderr),
    (6, lambda g: g.caught != "" or g.is_device_error),
    (3, lambda g: True),
]


@given(GIVEN)
def test_the_first_condition_that_holds_decides(trial: Given) -> None:
    assert category_of(trial)[0] == next(number for number, holds in PAGE if holds(trial))


def test_each_category_can_be_reached() -> None:
    flags = ("is_timeout", "is_device_error", "has_failed_check", "has_other_files", "has_other_stdout", "has_other_stderr")
    found = set()
    for values in itertools.product([False, True], repeat=len(flags)):
        for caught in ("", "InternalError"):
            trial = replace(Given(), caught=caught, **dict(zip(flags, values, strict=True)))
            found |= {category_of(each)[0] for each in (trial, replace(trial, has_only_warnings=True))}
    found |= {
        category_of(Given(status=1))[0],
        category_of(Given(text="misaligned address"))[0],
        category_of(Given(is_judged=False))[0],
    }
    found |= {category_of(Given(liveness="never read"))[0], category_of(Given(liveness="written first"))[0]}
    assert found == set(Category) - {Category.UNTOLD}


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({"is_equal": True, "outcome": "masked"}, 3),
        ({"outcome": "masked"}, 16),
        ({"outcome": "finite (no accuracy to classify by)"}, 16),
        ({"outcome": "slow degrade"}, 17),
        ({"outcome": "immediate INF/NaN"}, 17),
        ({"outcome": "crash", "status": 1, "exception": "ValueError"}, 5),
        ({"outcome": "crash", "status": -11}, 5),
        ({"outcome": "hang", "is_timeout": True, "status": 124}, 4),
    ],
)
def test_at_a_horizon_variables_are_the_output_and_the_outcome_is_the_check(changed: dict[str, Any], number: int) -> None:
    usual: dict[str, Any] = {"is_timeout": False, "status": 0, "exception": "", "is_equal": False, "outcome": ""}

    assert at_horizon(**{**usual, **changed})[0] == number


def test_both_streams_that_differ_are_silent_corruption() -> None:
    """Upstream has them uncategorized."""
    assert category_of(Given(has_other_stdout=True, has_other_stderr=True))[0] == 15


def test_the_class_of_an_exception_is_kept() -> None:
    assert category_of(Given(status=1, exception="InvalidArgumentError")) == (5, "InvalidArgumentError")
    assert category_of(Given(golden_status=3, status=3)) == (3, "")


@pytest.mark.parametrize(
    ("category", "kind"),
    [(1, "masked"), (3, "masked"), (4, "DUE"), (5, "DUE"), (6, "potential DUE"), (14, "potential DUE"), (15, "SDC"), (17, "SDC")],
)
def test_kinds_are_those_of_sassifis_table(category: int, kind: str) -> None:
    assert Category(category).kind == kind
    assert Category(category).label


def test_nvbitfi_counts_one_more_from_xid_43_on() -> None:
    assert [nvbitfi_number(Category(number)) for number in (1, 14, 15, 16, 17, 18)] == [1, 14, 16, 17, 18, 19]
    assert nvbitfi_number(Category.DEVICE_OUTPUT, is_xid_43=True) == 15


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("an illegal memory access was encountered", "illegal memory access"),
        ("cuDNN said CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_EXECUTION_FAILED"),
        ("CUDNN_STATUS_SUCCESS", ""),
        ("loss 3.4", ""),
    ],
)
def test_known_errors_are_told_by_their_text(text: str, known: str) -> None:
    assert known_error(text) == known


def test_lines_that_differ_between_two_golden_runs_are_left_out() -> None:
    one = "epoch 1 loss 0.25 in 3.5 s\nsaved in /tmp/a1\ndone"
    other = "epoch 1 loss 0.25 in 4.1 s\nsaved in /tmp/b2\ndone"
    patterns = differing_lines(one, other)

    assert compared(one, patterns) == compared(other, patterns) == ["done"]
    assert compared("epoch 1 loss 0.25 in 9 s\ndone, but", patterns) == ["done, but"]
    assert compared("epoch 1 loss 0.75 in 9 s\nsaved in /tmp/c3", patterns) == ["epoch 1 loss 0.75 in 9 s"]


def test_lines_of_one_golden_run_alone_are_left_out_as_they_are() -> None:
    patterns = differing_lines("a\nretry (2)", "a")

    assert compared("a\nretry (2)\nretry (3)", patterns) == ["a", "retry (3)"]


def test_what_stands_between_colons_is_left_out() -> None:
    assert compared(":::took 3 s:::\nresult 7\n::: open") == ["result 7", "::: open"]


def test_warnings_alone_are_told_from_other_messages() -> None:
    warning = "/x/y.py:3: RuntimeWarning: overflow encountered"

    assert are_only_warnings(["a"], ["a", warning, "  z = x * y"])
    assert not are_only_warnings(["a"], ["a", warning, "Traceback"])
    assert not are_only_warnings(["a"], ["a"])


@given(st.floats(0, 1e4))
def test_a_time_limit_is_ten_times_the_golden_runs(golden: float) -> None:
    assert time_limit(golden) == max(10, 10 * golden)
