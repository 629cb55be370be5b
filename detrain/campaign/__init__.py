"""Trials, and their outcomes."""
