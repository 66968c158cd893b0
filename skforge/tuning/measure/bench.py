"""Time calls on sample rows in interleaved rounds, as ratios within a round.

In a search, the default schedule is the yardstick, timed in every round. A slow phase
of the machine slows both runners, so candidates timed minutes apart are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.cost.estimate import distinct_rows
from skforge.engine.rows import forest_rows
from skforge.exceptions import plural
from skforge.forest.arrays import Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import (
    differing_rows,
    draw_rows,
    reference_raw,
    sum_limits,
)
from skforge.rows.readers import reader_of

if TYPE_CHECKING:
    from skforge.tuning.measure.measure import Runner


#: Maximum rows compared with the reference, and maximum row-tree pairs: the NumPy
#: reference handles about 10 million pairs a second.
CHECKED_ROWS, CHECKED_WALKS = 256, 1_000_000

#: Maximum values drawn for batches, and for rows to check, at about 30 ns each (rows
#: repeat if more are needed); and the minimum number of rows drawn.
DRAWN_VALUES, CHECKED_VALUES, FEWEST_ROWS = 2_000_000, 500_000, 16

#: Maximum bytes of all batches of one size.
BATCH_BYTES = 256 << 20


def _rows_in(forest: Forest, rows: Any) -> Array:
    """Read users' rows, or those that the source of a model has made already."""
    made = isinstance(rows, np.ndarray) and rows.dtype == forest.input_dtype
    made = made and rows.shape[1:] == (forest.n_features,)
    return forest_rows(forest, rows) if made else reader_of(forest).rows(rows)


class SampleRows:
    """Batches of the caller's rows, filled up with rows drawn around the thresholds.

    All rows are drawn if the caller gives none, or only missing values. ``note`` says
    why rows were drawn; it is empty if none were.
    """

    def __init__(
        self, forest: Forest, rows: Any, seed: int = 0, reduction: str = "exact"
    ) -> None:
        self._forest, self._seed, self._reduction = forest, seed, reduction
        self.note = ""
        if rows is None:
            self.note = "no sample was given; the rows are random"
        elif len(rows := _rows_in(forest, rows)) and np.isnan(rows).all():
            self.note = (
                "all values of the sample are missing; the rows are random instead"
            )
        empty = np.empty((0, forest.n_features), forest.input_dtype)
        self._rows: Array = empty if self.note else rows
        #: What is wrong with a code's predictions, by digest and batch size.
        self._wrong: dict[tuple[str, int], str] = {}

    def take(self, n: int) -> Array:
        if len(self._rows) < n:
            if not self.note:
                self.note = (
                    f"the sample has {plural(len(self._rows), 'row')}; the others are "
                    "random, around the model's thresholds"
                )
            missing = n - len(self._rows)
            missing = min(missing, max(FEWEST_ROWS, self._affordable(DRAWN_VALUES)))
            drawn = draw_rows(self._forest, missing, self._seed)
            drawn = forest_rows(self._forest, drawn)
            rows = np.concatenate([self._rows, drawn])
            self._rows = rows[np.arange(n) % len(rows)]
        return self._rows[:n]

    def _affordable(self, values: int) -> int:
        return values // max(1, self._forest.n_features)

    def batches(self, n_rows: int) -> list[Array]:
        row_bytes = max(1, self._forest.n_features * self._forest.input_dtype.itemsize)
        fit = max(1, BATCH_BYTES // (n_rows * row_bytes))
        count = max(1, min(int(distinct_rows(n_rows, row_bytes)) // n_rows, fit))
        rows = np.ascontiguousarray(self.take(count * n_rows))
        return [rows[i * n_rows : (i + 1) * n_rows] for i in range(count)]

    def wrong(self, predict: Callable[[Array], Array], digest: str, n_rows: int) -> str:
        """Describe the first wrong row, or ""; codes are compared once a batch size."""
        key = digest, n_rows
        if key not in self._wrong:
            self._wrong[key] = self._compare(predict, n_rows)
        return self._wrong[key]

    def _compare(self, predict: Callable[[Array], Array], n_rows: int) -> str:
        rows, expected, limit = self._checked
        order = np.arange(max(n_rows, len(rows))) % len(rows)
        for first in range(0, len(order), n_rows):
            at = order[first : first + n_rows]  # the last may be shorter: remainders
            answer = predict(np.ascontiguousarray(rows[at]))
            bad = differing_rows(answer, expected[at], limit[at])
            if len(bad):
                row = bad[0]
                return (
                    f"in a batch of {len(at)}, row {row} gives {answer[row].tolist()}, "
                    f"expected {expected[at[row]].tolist()}"
                )
        return ""

    @cached_property
    def _checked(self) -> tuple[Array, Array, Array]:
        """Rows, their scores, and each row's largest allowed error.

        Up to half of the rows are the caller's; the others lie on and around the
        thresholds. The error is 0 in exact mode, which demands equal bits.
        """
        forest = self._forest
        most = CHECKED_WALKS // max(1, forest.n_trees)
        most = min(CHECKED_ROWS, most, self._affordable(CHECKED_VALUES))
        half = max(FEWEST_ROWS, most) // 2
        rows = self._rows[:half]
        missing = 0.02 if bool((forest.missing != Missing.NEVER).any()) else 0.0
        drawn = draw_rows(forest, 2 * half - len(rows), self._seed + 1, missing)
        rows = np.concatenate([rows, forest_rows(forest, drawn)])
        limit = sum_limits(forest, rows, self._reduction)
        return np.ascontiguousarray(rows), reference_raw(forest, rows), limit


T = TypeVar("T")

#: Give up a candidate this many times slower than the best: after one call, and after
#: two samples.
HOPELESS, POOR = 3.0, 1.5

#: Samples taken even if time is up.
FEWEST = 3

#: Maximum repetitions of the batches in one sample.
MOST_ROUNDS = 1 << 16


def in_rounds(
    calls: Sequence[Callable[[], float]], rounds: int, late: Callable[[], bool]
) -> Iterator[list[float]]:
    """Yield each round's results, the order rotating; ``FEWEST`` once ``late``."""
    for number in range(rounds):
        if number >= FEWEST and late():
            return
        seconds = [0.0] * len(calls)
        for place in range(len(calls)):
            which = (place + number) % len(calls)
            seconds[which] = calls[which]()
        yield seconds


@dataclass(frozen=True, slots=True)
class Sampled:
    samples: tuple[float, ...]  # seconds per call
    ratios: tuple[float, ...]  # each divided by the yardstick's in the same round
    stopped: str = ""  # the reason if timing ended early

    @property
    def relative(self) -> float:
        return median(self.ratios)


class Bench:
    def __init__(
        self, batches: Sequence[Array], yardstick: Runner, slot: float
    ) -> None:
        self._batches, self._yardstick, self._slot = batches, yardstick, slot
        self._rounds: dict[int, int] = {}
        self._look(yardstick)
        #: Seconds per call of the yardstick, in the order measured.
        self.baseline: list[float] = [self._sample(yardstick) for _ in range(3)]

    def compare(
        self,
        runner: Runner,
        samples: int,
        best: float,
        late: Callable[[], bool] = lambda: False,
    ) -> Sampled:
        """Time a runner and the yardstick in ``samples`` interleaved samples.

        Stops early if the runner is far worse than the ratio ``best``. Once ``late``
        returns True, it stops after ``FEWEST`` samples.
        """
        standard = median(self.baseline)
        seconds = self._look(runner)
        if seconds > HOPELESS * best * standard:
            # If the machine is slow now, the default is slow, too.
            ratio = seconds / max(standard, self._look(self._yardstick))
            if ratio > HOPELESS * best:
                text = f"one call took {ratio:.1f} times as long as the default's"
                return Sampled((seconds,), (ratio,), text)
        times: list[float] = []
        ratios: list[float] = []
        stopped = ""
        for base, elapsed in in_rounds(self._samplers(runner), samples, late):
            self.baseline.append(base)
            times.append(elapsed)
            ratios.append(elapsed / base)
            if len(ratios) == 2 < samples and min(ratios) > POOR * best:
                stopped = (
                    f"two samples took at least {min(ratios):.2f} times as long as "
                    "the default's"
                )
                break
        return Sampled(tuple(times), tuple(ratios), stopped)

    def together(
        self,
        runners: Mapping[T, Runner],
        samples: int,
        late: Callable[[], bool] = lambda: False,
    ) -> dict[T, Sampled]:
        for runner in runners.values():
            self._look(runner)
        rounds = in_rounds(self._samplers(*runners.values()), samples, late)
        base, *others = zip(*rounds, strict=True)
        self.baseline += base
        return {
            name: Sampled(times, tuple(t / b for t, b in zip(times, base, strict=True)))
            for name, times in zip(runners, others, strict=True)
        }

    def _samplers(self, *runners: Runner) -> list[Callable[[], float]]:
        return [partial(self._sample, r) for r in (self._yardstick, *runners)]

    def _look(self, runner: Runner) -> float:
        seconds = max(1e-9, min(runner.time(self._batches, 1) for _ in range(2)))
        fit = int(self._slot / (seconds * len(self._batches)))
        self._rounds[id(runner)] = max(1, min(MOST_ROUNDS, fit))
        return seconds

    def _sample(self, runner: Runner) -> float:
        return max(1e-9, runner.time(self._batches, self._rounds.get(id(runner), 1)))
