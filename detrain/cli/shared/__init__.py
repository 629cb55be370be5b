"""Helpers that commands share: options, and tables for people."""
