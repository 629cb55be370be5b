"""The last moments in memory, and the way back to them."""
