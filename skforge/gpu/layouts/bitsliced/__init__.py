"""Bit logic on GPUs: the predicates, rows and trees of a block of threads."""
