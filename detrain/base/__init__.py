"""The base of all rooms: errors, cursors, digests, configuration, messages. It imports no other room."""

from __future__ import annotations

from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
PACKAGE: Final = Path(__file__).parents[1]
"""The folder with detrain's own code."""
