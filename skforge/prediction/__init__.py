"""Predictions: from a user's rows to the source's answers."""
