"""The libraries that campaigns compute with: an extra, because trials do not need them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from detrain.base.errors import UsageError


def library(name: str) -> Any:
    """Return a module of an extra of detrain's. Raises UsageError where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"estimates and reports of campaigns need {name.partition('.')[0]}: {error}", "install detrain[campaign]"
        ) from error
