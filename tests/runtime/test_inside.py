"""A digest of what an object of a library leads to."""

from __future__ import annotations

from typing import Any

import click

from detrain.runtime.inside import inside


def test_a_number_that_python_does_not_write_in_decimal_shows_that_it_changes() -> None:
    option: Any = click.Option(["--of-a-library"])
    option.number = 10**5000
    before = inside(option)
    option.number += 1

    assert inside(option) != before
