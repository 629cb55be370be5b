"""`torch.utils.data`: the positions of loaders, and the state of their workers."""
