"""What a checkpoint says about the weights file that a framework would write of a model: data alone, no framework is
needed.
"""

from __future__ import annotations

import msgspec


class WeightsGroup(msgspec.Struct, frozen=True, array_like=True):
    """What one object of a model (a layer, an optimizer) stores: its path in the file, its name, the keys of its
    variables.
    """

    path: str
    name: str | None
    keys: tuple[str, ...]


class WeightsFile(msgspec.Struct, frozen=True):
    """The weights file of a model.

    Without groups the model was not built, or `refused` says why there can be no file.
    """

    name: str
    groups: tuple[WeightsGroup, ...] = ()
    refused: str = ""
