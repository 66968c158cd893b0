"""Deep trees as pieces: every row meets every test of a few small subtrees."""
