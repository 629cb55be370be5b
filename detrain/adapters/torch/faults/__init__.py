"""Faults in PyTorch: the ops of a step seen by a dispatch mode, values corrupted there, the losses of a step."""
