"""Faults in PyTorch: a dispatch mode that watches a step's ops and corrupts values, and the losses of a step."""
