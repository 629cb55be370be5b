"""What objects of other libraries mean for the state: one with arrays in it that cannot be captured is weights lost."""

from __future__ import annotations

from typing import Any

import jax

from detrain.adapters.jax.trees import leaves_of


class JaxRules:
    """See `detrain.adapters.api.ObjectRules`."""

    on_functions: frozenset[str] = frozenset()

    def is_holder(self, _value: object) -> bool:
        """JAX has no objects whose attributes are the loop's."""
        return False

    def is_container(self, _value: object) -> bool:
        """Nor containers around what the program put there."""
        return False

    def holds_variables(self, value: Any) -> bool:
        """Return whether an object has arrays in it: as a tree of JAX's, or as attributes."""
        own = getattr(value, "__dict__", None) or {}
        found = [*leaves_of(value), *(own.values() if isinstance(own, dict) else ())]
        return any(isinstance(each, jax.Array) and each is not value for each in found)

    def is_of_loop(self, _value: object) -> bool:
        """Nothing tells when it was made."""
        return False

    def is_spent(self, _value: object) -> bool:
        """No array serves its time before it is deleted, which is seen."""
        return False
