"""Lowering from HIR to MIR and from MIR to LIR."""
