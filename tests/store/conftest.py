"""Fixtures of the store's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.store.mirror.remote import Remote


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(f"file://{tmp_path}/mirror", "train")
