"""Whether two runs are the same, and where they part."""
