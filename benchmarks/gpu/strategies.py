"""Strategies of other systems, as schedules, timed on one GPU.

RAPIDS, Tahoe, Hummingbird and XGBoost are compared as what they do, not as what they
are: their schedules are presets, compiled by skforge. Their sums are in any order, but
for Hummingbird's, which stores the leaves as exact sums do; skforge's own are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.devices import clock_of
from skforge import compile_forest
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import SkforgeError

Seconds = dict[int, float]

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


class Measured:
    """A GPU, or for tests the emulated one."""

    def __init__(
        self, forest: Forest, rows: NDArray[Any], target: str, calls: int = 20
    ) -> None:
        self.forest, self.rows, self.target = forest, rows, target
        self.calls = calls
        self.clock = clock_of(target)

    def seconds(
        self, schedule: Schedule | None, reduction: Reduction, batches: Sequence[int]
    ) -> Seconds:
        module = compile_forest(self.forest, schedule, self.target, reduction)
        found = {}
        for n in batches:
            rows = np.resize(self.rows, (n, self.forest.n_features))
            on_device = self.clock.put(np.ascontiguousarray(rows))

            def call(rows: Any = on_device) -> Any:
                return module.predict_raw(rows)

            call()
            found[n] = min(
                self.clock.kernel_seconds(call, self.calls) for _ in range(3)
            )
        return found


def times(timer: Measured, batches: Sequence[int]) -> dict[str, list[float | None]]:
    """Return the times of skforge's default and of all presets, None if not legal."""
    found = {OURS: seconds_of(timer, None, "exact", batches)}
    for name in PRESETS:
        reduction: Reduction = "exact" if name == "hummingbird" else "fast"
        found[name] = seconds_of(timer, Schedule.preset(name), reduction, batches)
    return found


def seconds_of(
    timer: Measured,
    schedule: Schedule | None,
    reduction: Reduction,
    batches: Sequence[int],
) -> list[float | None]:
    try:
        found = timer.seconds(schedule, reduction, batches)
    except SkforgeError:
        return [None] * len(batches)
    return [found[n] for n in batches]


def system(found: dict[str, list[float | None]], name: str) -> list[float | None]:
    """Return the times of a system: of its fastest preset at each batch size."""
    columns = zip(*(found[preset] for preset in STRATEGIES[name]), strict=True)
    return [min((x for x in one if x is not None), default=None) for one in columns]
