"""The template of GPU schedules: SilvanForge's Table 5."""

from __future__ import annotations

from functools import lru_cache

from skforge.compiler.defaults.cpu import ForestShape
from skforge.compiler.schedule.schedule import Schedule
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


@lru_cache(maxsize=1)  # a space is a value, and lists its points only once
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

    With ``cache_trees`` the trees that all threads of a block walk at a time, some for
    each thread, are in shared memory; their loop is then outside the threads.
    """
    rows, per_thread = point["rows_per_block"], point["rows_per_thread"]
    threads, in_flight = point["tree_threads"], point["interleave"]
    schedule = Schedule().tile("batch", "b0", "b1", rows)
    row_thread, row_loops = "b1", ["b1"]
    if per_thread > 1:
        schedule = schedule.tile("b1", "r0", "r1", per_thread)
        row_thread, row_loops = "r0", ["r0", "r1"]
    if point["cache_trees"]:
        schedule = schedule.tile("tree", "t0", "t1", threads * in_flight)
        schedule = schedule.tile("t1", "t2", "t3", in_flight)
        schedule = schedule.reorder("b0", "t0", row_thread, "t2", *row_loops[1:], "t3")
        tree_thread, trees = "t2", "t3"
    else:
        schedule = schedule.tile("tree", "t0", "t1", threads)
        schedule = schedule.reorder("b0", row_thread, "t1", *row_loops[1:], "t0")
        tree_thread, trees = "t1", "t0"
    schedule = (
        schedule.gpu_dimension("b0", "grid.x")
        .gpu_dimension(row_thread, "block.x")
        .gpu_dimension(tree_thread, "block.y")
    )
    if point["cache_rows"]:
        schedule = schedule.cache("b0")
    if point["cache_trees"]:
        schedule = schedule.cache("t0")
    if in_flight > 1:
        schedule = schedule.interleave(trees, in_flight)
    if point["unroll_walks"] and shape.max_depth:
        schedule = schedule.unroll_walk(trees, shape.max_depth)
    if point["shared_reduce"]:
        schedule = schedule.shared_reduce(tree_thread)
    return schedule.represent(point["representation"])
