"""Which schedules a search may try; importing it makes the known spaces."""

from skforge.tuning.space import cpu, gpu

__all__ = ["cpu", "gpu"]
