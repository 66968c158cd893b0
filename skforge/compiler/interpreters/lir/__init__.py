"""Runs LIR, translated to Python."""
