"""How trees lie in memory: plugins behind one interface; importing registers ours."""

from skforge.compiler.representations import array, bitsliced, sparse

__all__ = ["array", "bitsliced", "sparse"]
