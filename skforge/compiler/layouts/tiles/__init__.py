"""Deep trees as tiles of nodes, compared in registers."""
