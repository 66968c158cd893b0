"""How trees lie in memory: plugins behind one interface; importing registers ours."""

from skforge.compiler.layouts.background.look_up import Patterned
from skforge.compiler.layouts.background.walk import Background
from skforge.compiler.layouts.bitsliced.bitsliced import Bitsliced
from skforge.compiler.layouts.contributions.contributions import Contributions
from skforge.compiler.layouts.lanes.lanes import Lanes
from skforge.compiler.layouts.nodes.array import Heap
from skforge.compiler.layouts.nodes.sparse import Sparse
from skforge.compiler.layouts.pieces.pieces import Pieces
from skforge.compiler.layouts.tiles.tiles import Tiles

__all__ = [
    "Background",
    "Bitsliced",
    "Contributions",
    "Heap",
    "Lanes",
    "Patterned",
    "Pieces",
    "Sparse",
    "Tiles",
]
