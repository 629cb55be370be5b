"""Where the run is, and what happens at a cut."""
