"""How trees lie in memory on GPUs alone; importing registers the representations."""

from skforge.gpu.layouts import contributions as contributions
from skforge.gpu.layouts.bitsliced import layout as bitsliced

__all__ = ["bitsliced", "contributions"]
