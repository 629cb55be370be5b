"""What the guard looks at in JAX."""
