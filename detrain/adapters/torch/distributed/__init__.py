"""Programs of several processes: a check that they are exact, and ways to sum gradients in the same order again."""
