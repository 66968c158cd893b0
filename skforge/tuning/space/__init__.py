"""Which schedules a search may try."""

from skforge.tuning.space import cpu, gpu
from skforge.tuning.space.space import ScheduleSpace, _given

# Pickles of earlier versions name ScheduleSpace and _given here.
__all__ = ["ScheduleSpace", "_given", "cpu", "gpu"]
