"""The observers of cuts beside the checkpointer: a run's fault experiment, and `detrain verify`."""
