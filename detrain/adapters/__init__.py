"""The seam to frameworks, and one room each. Nothing outside of a framework's room imports it."""
