"""The place of the run, and the work at a cut."""
