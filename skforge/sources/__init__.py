"""Rows as each source library takes them, from live models and from files."""
