"""How a loader comes back to a position, and what it loaded."""
