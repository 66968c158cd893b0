"""Which schedules a search may try."""

from skforge.tuning.space import cpu, gpu, gpu_table5
from skforge.tuning.space.space import ScheduleSpace

__all__ = ["ScheduleSpace", "cpu", "gpu", "gpu_table5"]
