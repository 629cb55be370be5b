"""What the guard looks at in PyTorch, and what goes back with the Python state."""
