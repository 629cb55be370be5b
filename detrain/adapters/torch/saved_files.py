"""Files that `torch.save` and safetensors write: code of theirs opens them, so nothing else hears of them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from detrain.base.in_place import in_place_of

_SERIALIZE: Final = "serialize_file"
"""What the modules of safetensors write a file by."""
_SAFETENSORS: Final = ("safetensors.torch", "safetensors.numpy")


class SavedFiles:
    """Tells of each file that is written from here on."""

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        save = torch.save

        @in_place_of(torch, "save")
        def saved(obj: object, f: Any, *arguments: Any, **keywords: Any) -> None:
            self._tell(f)
            save(obj, f, *arguments, **keywords)

        self.on_import("")

    def on_import(self, _module: str) -> None:
        """A module has been imported, others with it."""
        for name in _SAFETENSORS:
            module = sys.modules.get(name)
            serialize = vars(module).get(_SERIALIZE) if module is not None else None
            if serialize is not None and not hasattr(serialize, "__wrapped__"):
                setattr(module, _SERIALIZE, self._telling(serialize))

    def _telling(self, serialize: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(serialize)
        def serialized(tensors: Any, filename: Any, *arguments: Any, **keywords: Any) -> Any:
            self._tell(filename)
            return serialize(tensors, filename, *arguments, **keywords)

        serialized.__wrapped__ = serialize
        return serialized

    def _tell(self, file: Any) -> None:
        if isinstance(file, str | os.PathLike):
            self._note(os.path.abspath(os.fspath(file)))
