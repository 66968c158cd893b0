"""Passes over each IR level: one file per pass, each with one function ``run``."""
