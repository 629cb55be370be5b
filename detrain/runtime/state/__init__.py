"""The state at a cut: the parts that are captured, and the losses."""
