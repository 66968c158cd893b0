"""Which schedules a search may try; importing it makes the known spaces."""

from skforge.gpu import space as gpu
from skforge.tuning.space import cpu

__all__ = ["cpu", "gpu"]
