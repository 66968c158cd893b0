"""How trees lie in memory: plugins behind one interface; importing registers ours."""

from skforge.compiler.representations import (
    array,
    bitsliced,
    lanes,
    packed,
    sparse,
    tiles,
)

__all__ = ["array", "bitsliced", "lanes", "packed", "sparse", "tiles"]
