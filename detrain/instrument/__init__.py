"""Structure and source -> source with probes: in memory by default, never the user's file unasked."""
