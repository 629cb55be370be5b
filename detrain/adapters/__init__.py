"""The seam to frameworks, and a room for each. Only the code in a framework's room imports the framework."""
