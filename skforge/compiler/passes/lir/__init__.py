"""Passes over lowered code."""
