"""Converts rows as each source library does, for live models and for files."""
