"""What of a program's steps can be hit, how often it is there, what a campaign draws of it, what came of each draw."""
