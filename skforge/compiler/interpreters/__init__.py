"""Interpreters of MIR and LIR: the oracles of the tests."""
