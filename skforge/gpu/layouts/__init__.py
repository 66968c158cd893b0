"""How trees lie in memory on GPUs alone."""
