"""The export of checkpoints to files of other tools."""
