"""From MIR to LIR."""
