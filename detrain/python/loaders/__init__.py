"""Loaders: how one comes back to a position, and the digests of the batches that it loaded."""
