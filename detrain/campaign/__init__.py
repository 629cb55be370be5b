"""Trials, and what came of them."""
