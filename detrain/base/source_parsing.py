"""Reading the program's source: a syntax tree, and nothing said of it.

What Python says of it, it says once, when it runs.
"""

from __future__ import annotations

import ast
import warnings


def parse(source: bytes | str, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a source.

    Raises SyntaxError and ValueError as `ast.parse` does, but no warning (`"\\d"`).
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source, filename)
