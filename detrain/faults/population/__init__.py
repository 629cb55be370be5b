"""The population of faults in a program's steps, the draws that a campaign makes from it, and the results of draws."""
