"""The adapter for PyTorch: tensors are leaves of Python objects, put back in place; no registry names them."""
