"""Passes over LIR."""
