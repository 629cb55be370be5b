"""Where among Keras's layers a call stands: what a function makes that a layer calls is named after its path."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def path_in_keras() -> str | None:
    """Return the path of the Keras layer that is being called:
    a function that it calls names after it what it makes."""
    if "keras" not in sys.modules:
        return None
    from keras.src.backend.common.name_scope import current_path

    return current_path() or None


@contextlib.contextmanager
def in_keras_at(path: str | None) -> Iterator[None]:
    """Be where a Keras layer of this path is called."""
    if not path:
        yield
        return
    from keras.src.backend.common.name_scope import name_scope

    with contextlib.ExitStack() as stack:
        for part in path.split("/"):
            stack.enter_context(name_scope(part, deduplicate=False))
        yield
