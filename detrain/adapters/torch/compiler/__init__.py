"""`torch.compile`: its compilations so far are state, and the attributes that it puts into modules are not."""
