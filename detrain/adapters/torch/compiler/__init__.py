"""`torch.compile`: what it has compiled so far is state, and what it puts into modules is not."""
