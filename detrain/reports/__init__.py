"""Trials and campaigns as text and pictures."""
