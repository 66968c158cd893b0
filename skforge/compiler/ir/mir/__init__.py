"""MIR: loops over rows and trees, walks and reductions."""
