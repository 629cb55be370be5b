"""Members of enumerations: they are data, found by the name of the class and their own name."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from detrain.base.plain_types import CONTAINERS

_CHANGEABLE: Final = frozenset(CONTAINERS.values()) - {tuple, frozenset}


def is_enum(cls: type) -> bool:
    """Return whether a class is an enumeration."""
    return issubclass(cls, enum.Enum)


def members_of(cls: type) -> Mapping[str, Any]:
    """Return the members of an enumeration by name; none for any other class."""
    return cls.__members__ if issubclass(cls, enum.Enum) else {}


def bits_of_flag(member: Any) -> int | None:
    """Return the value of a member of flags, which may combine several names or none; None for any other member."""
    return member.value if isinstance(member, enum.Flag) else None


def flag_of_bits(cls: type, bits: object) -> Any:
    """Return the member of flags with a value; None if the class has no flags, or no member has the value."""
    try:
        return cls(bits) if issubclass(cls, enum.Flag) else None
    except (TypeError, ValueError):
        return None


def member_attributes(member: Any) -> dict[str, object]:
    """Return the attributes that the program has set on a member, and its value if that can change."""
    return {
        name: item
        for name, item in vars(member).items()
        if not is_of_enum(name) or (name == "_value_" and type(item) in _CHANGEABLE)
    }


def is_of_enum(name: str) -> bool:
    """Return whether an attribute of an enumeration or a member is Python's own."""
    return name.startswith("_") and name.endswith("_")
