"""Computes the source's answers from raw scores."""
