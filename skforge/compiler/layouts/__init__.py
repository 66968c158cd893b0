"""How trees lie in memory: plugins behind one interface; importing registers ours."""

from skforge.compiler.layouts.bitsliced import bitsliced
from skforge.compiler.layouts.lanes import lanes
from skforge.compiler.layouts.nodes import array, packed, sparse
from skforge.compiler.layouts.tiles import tiles

__all__ = ["array", "bitsliced", "lanes", "packed", "sparse", "tiles"]
