"""How trees lie in memory: plugins behind one interface; importing registers ours."""

from skforge.compiler.representations import array, bitsliced, sparse, tiles

__all__ = ["array", "bitsliced", "sparse", "tiles"]
