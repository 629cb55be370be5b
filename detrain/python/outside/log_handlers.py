"""Handlers of `logging` that empty their files as they open them, which a resumed process may do after the cut."""

from __future__ import annotations

import logging
import os


def emptying() -> list[logging.FileHandler]:
    """Return the living handlers that empty their files when they open them."""
    known = [reference() for reference in list(getattr(logging, "_handlerList", ()))]
    return [each for each in known if isinstance(each, logging.FileHandler) and str(each.mode).startswith("w")]


def open_again(path: str) -> None:
    """Open the file of each handler that waits for its first record (`delay`), and had it open at the cut."""
    for handler in emptying():
        if handler.baseFilename == path and handler.stream is None and not getattr(handler, "_closed", False):
            handler.stream = handler._open()
            handler.stream.seek(0, os.SEEK_END)
            getattr(handler, "_statstream", lambda: None)()  # a watched file counts as the one that was opened


def is_in_use(handler: logging.FileHandler) -> bool:
    """Return whether a logger has the handler, and its file is open."""
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    return handler.stream is not None and any(handler in getattr(each, "handlers", ()) for each in loggers)
