"""Planning a campaign: the profile of a program, and plans drawn from its sites."""
