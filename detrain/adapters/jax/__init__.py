"""JAX: arrays as immutable leaves of objects, functions that are compiled, updates, settings."""
