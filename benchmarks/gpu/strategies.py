"""Strategies of other systems, as schedules, timed on one GPU.

RAPIDS, Tahoe, Hummingbird and XGBoost are compared as what they do, not as what they
are: their schedules are presets, compiled by skforge. Their sums are in any order, but
for Hummingbird's, which stores the leaves as exact sums do; skforge's own are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.devices import Clock, clock_of
from skforge import compile_forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.exceptions import SkforgeError
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule

Array = NDArray[Any]
Times = dict[str, list[float | None]]

TAHOE = (
    "tahoe-direct",
    "tahoe-shared-data",
    "tahoe-shared-forest",
    "tahoe-splitting-shared-forest",
)
#: The presets of each system. It has the fastest of them that is legal: Tahoe chooses
#: by a model, and XGBoost leaves rows in memory that are too wide for shared memory.
STRATEGIES = {
    "RAPIDS": ("rapids",),
    "Tahoe": TAHOE,
    "Hummingbird": ("hummingbird",),
    "XGBoost": ("xgboost-gpu", "tahoe-direct"),
}
PRESETS = tuple(dict.fromkeys(name for one in STRATEGIES.values() for name in one))
OURS = "skforge"


def times(
    forest: Forest, rows: Array, target: str, batches: Sequence[int], calls: int = 20
) -> Times:
    """Return the times of skforge's default and of all presets, None if not legal."""
    timed = partial(_seconds, forest, rows, target, batches, calls, clock_of(target))
    found = {OURS: timed(None, "exact")}
    for name in PRESETS:
        reduction = "exact" if name == "hummingbird" else "fast"
        found[name] = timed(Schedule.preset(name), reduction)
    return found


def _seconds(
    forest: Forest,
    rows: Array,
    target: str,
    batches: Sequence[int],
    calls: int,
    clock: Clock,
    schedule: Schedule | None,
    reduction: Reduction,
) -> list[float | None]:
    """Compile a schedule, and time its kernels by events."""
    found: list[float | None] = []
    try:
        module = compile_forest(forest, schedule, target, reduction)
        for n in batches:
            some = np.ascontiguousarray(np.resize(rows, (n, forest.n_features)))
            call = partial(module.predict_raw, clock.put(some))
            call()
            found.append(min(clock.kernel_seconds(call, calls) for _ in range(3)))
    except SkforgeError:
        return [None] * len(batches)
    return found


def system(found: Times, name: str) -> list[float | None]:
    """Return the times of a system: of its fastest preset at each batch size."""
    columns = zip(*(found[preset] for preset in STRATEGIES[name]), strict=True)
    return [min((x for x in one if x is not None), default=None) for one in columns]
