"""Keras: `fit`, models and callbacks."""
