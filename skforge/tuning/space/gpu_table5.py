"""The template of GPU schedules: SilvanForge's Table 5."""

from __future__ import annotations

from functools import lru_cache

from skforge.compiler.defaults.cpu import ForestShape
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.space.gpu import GPU, full_gpu_schedule, gpu_point
from skforge.tuning.space.space import MAKERS, Point, ScheduleSpace

TABLE_5 = {
    "rows_per_block": (8, 32, 64),
    "rows_per_thread": (1, 2, 4),
    "tree_threads": (2, 10, 20, 50),
    "cache_rows": (True, False),
    "cache_trees": (True, False),
    "unroll_walks": (True, False),
    "interleave": (1, 2, 4),
    "shared_reduce": (True, False),
    "representation": ("array", "sparse", "reorg"),
}


@lru_cache(maxsize=1)  # spaces are immutable and list their points only once
def gpu_space() -> ScheduleSpace:
    """Return Table 5 of papers on SilvanForge (§8.1): 3·3·4·2·2·2·3·2·3 = 5184."""
    return ScheduleSpace(TABLE_5, gpu_schedule, name="gpu")


MAKERS["gpu"] = gpu_space


def gpu_schedule(point: Point, shape: ForestShape) -> Schedule:
    """Return the schedule of a point of Table 5.

    A block of threads takes ``rows_per_block`` rows. A thread takes ``rows_per_thread``
    of them through one in ``tree_threads`` of the trees, ``interleave`` trees at a
    time::

        for b0 in blocks of rows:                     grid.x     (cache_rows)
          for r0 in its rows, by rows_per_thread:     block.x
            for t1 in 0 to tree_threads:              block.y    (shared_reduce)
              for r1 in rows of the thread:
                for t0 in trees of the thread:        interleave, unroll_walk

    With ``cache_trees``, shared memory holds the trees that the threads of a block
    traverse at a time; the loop over trees is then outside the threads.
    """
    own = {name: point[name] for name in point.keys() & GPU.keys()}
    more = gpu_point(
        "parts",
        rows_in="shared" if point["cache_rows"] else "memory",
        cached_trees=point["interleave"] if point["cache_trees"] else 0,
        hops="unroll" if point["unroll_walks"] else "checked",
        sums="shared" if point["shared_reduce"] else "memory",
    )
    return full_gpu_schedule({**more, **own}, shape)
