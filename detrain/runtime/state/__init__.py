"""The state at a cut: what is captured, and what is not."""
