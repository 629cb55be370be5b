"""Faults in JAX: the equations of what is compiled, faults put into them, the losses of a step."""
