"""What came of a trial by what its program has said, written and left, beside the golden run."""
