"""Compiled entries: a Python callable that is machine code."""
