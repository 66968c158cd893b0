"""Compiled modules and what runs them."""
