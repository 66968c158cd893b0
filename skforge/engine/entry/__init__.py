"""Compiled entries: machine code that Python calls directly."""
