"""Runs MIR on rows."""
