"""The norms that the guard looks at; variables held and put back."""
