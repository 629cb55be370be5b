"""`torch.utils.data`: how far loaders are, and what their workers hold."""
