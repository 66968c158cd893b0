"""Passes over loop nests."""
