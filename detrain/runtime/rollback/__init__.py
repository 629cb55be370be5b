"""The last states of the run, kept in memory (moments), and the way back to them."""
