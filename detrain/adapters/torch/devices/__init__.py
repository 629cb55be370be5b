"""Devices other than the host's processors: copies of what is there, and what becomes of it where they are not."""
