"""A copy of a checkpoint home on another machine, or in an object store, that is made while the program trains."""
