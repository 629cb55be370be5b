"""The comparison of runs: whether two are the same, and where they begin to differ."""
