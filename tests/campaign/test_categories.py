"""Categories: the order of decisions against the table of definitions, written down again."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from detrain.campaign.judging.categories import (
    Category,
    TrialFacts,
    are_only_warnings,
    category_of,
    known_error,
)

GIVEN = st.builds(
    TrialFacts,
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
PAGE: list[tuple[int, Callable[[TrialFacts], bool]]] = [
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
def test_the_first_condition_that_holds_decides(trial: TrialFacts) -> None:
    assert category_of(trial)[0] == next(number for number, holds in PAGE if holds(trial))


def test_each_category_can_be_reached() -> None:
    flags = ("is_timeout", "is_device_error", "has_failed_check", "has_other_files", "has_other_stdout", "has_other_stderr")
    found = set()
    for values in itertools.product([False, True], repeat=len(flags)):
        for caught in ("", "InternalError"):
            trial = replace(TrialFacts(), caught=caught, **dict(zip(flags, values, strict=True)))
            found |= {category_of(each)[0] for each in (trial, replace(trial, has_only_warnings=True))}
    found |= {
        category_of(TrialFacts(status=1))[0],
        category_of(TrialFacts(text="misaligned address"))[0],
        category_of(TrialFacts(is_judged=False))[0],
    }
    found |= {category_of(TrialFacts(liveness="never read"))[0], category_of(TrialFacts(liveness="written first"))[0]}
    assert found == set(Category) - {Category.UNTOLD}


def test_both_streams_that_differ_are_silent_corruption() -> None:
    """Upstream has them uncategorized."""
    assert category_of(TrialFacts(has_other_stdout=True, has_other_stderr=True))[0] == 15


def test_the_class_of_an_exception_is_kept() -> None:
    assert category_of(TrialFacts(status=1, exception="InvalidArgumentError")) == (5, "InvalidArgumentError")
    assert category_of(TrialFacts(golden_status=3, status=3)) == (3, "")


@pytest.mark.parametrize(
    ("category", "kind"),
    [(1, "masked"), (3, "masked"), (4, "DUE"), (5, "DUE"), (6, "potential DUE"), (14, "potential DUE"), (15, "SDC"), (17, "SDC")],
)
def test_kinds_are_those_of_sassifis_table(category: int, kind: str) -> None:
    assert Category(category).kind == kind
    assert Category(category).label


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


def test_warnings_alone_are_told_from_other_messages() -> None:
    warning = "/x/y.py:3: RuntimeWarning: overflow encountered"

    assert are_only_warnings(["a"], ["a", warning, "  z = x * y"])
    assert not are_only_warnings(["a"], ["a", warning, "Traceback"])
    assert not are_only_warnings(["a"], ["a"])
