"""From a program to what a campaign of it is planned from."""
