"""Who hears of cuts beside the checkpointer: the experiment that a run is, and `detrain verify`."""
