"""What the guard looks at, and how variables are held and put back."""
