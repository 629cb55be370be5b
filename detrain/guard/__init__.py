"""Hardware faults: the guard detects them by the size of the variables and gradients, and undoes them by running the
steps again.
"""
