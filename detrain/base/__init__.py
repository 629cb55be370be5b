"""The base that every other room may use: errors, cursors, digests, configuration, messages. It imports no room."""

from __future__ import annotations

from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
PACKAGE: Final = Path(__file__).parents[1]
"""The folder that detrain's own code lies in."""
