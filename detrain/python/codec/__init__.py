"""Python objects as data, and back, in place."""
