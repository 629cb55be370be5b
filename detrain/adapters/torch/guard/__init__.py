"""The norms that the guard watches in PyTorch, and the way back to a moment in memory."""
