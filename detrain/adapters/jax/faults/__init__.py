"""Faults in JAX: the equations of compiled functions, faults put into them, the losses of a step."""
