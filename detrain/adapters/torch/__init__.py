"""The adapter for PyTorch: tensors are leaves of Python objects, put back in place; nothing is registered by birth."""
