"""Programs of several processes: which of them are exact, and how gradients come into the same sums again."""
