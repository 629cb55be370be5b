"""Moments of a run that is over: going to one, and running the program again with statements that were added since."""
