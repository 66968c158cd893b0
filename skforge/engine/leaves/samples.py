"""Quantiles and means of the training samples in the leaves that a row reaches.

They have the arithmetic of ``quantile-forest`` or, where each leaf has one sample, that
of NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.engine.leaves.sums import PayloadSums
from skforge.engine.routines import routine
from skforge.forest.leaf_payloads import LANES, LeafSamples

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function
    from skforge.engine.leaves.samples_function import SampleStatistic

#: Rows that one thread answers alone.
FEW_ROWS = 64

#: Places that 16 bits number, and fewest samples of a row that they do not count.
NARROW, MOST_COUNTED = (1 << 16) - 1, 1 << 15

#: How a number between two samples is chosen, as the library names it.
INTERPOLATIONS = "linear", "lower", "higher", "midpoint", "nearest"


#: What is found: of quantiles, then of means, without weights, with those of samples,
#: and with those of leaves.
_STATISTICS: tuple[tuple[SampleStatistic, ...], ...] = (
    ("ranks", "counts", "weights"),
    ("average", "mean", "weighted_mean"),
)


@dataclass(frozen=True, slots=True)
class QuantileQuery:
    """What to compute; the names are those of the library's arguments."""

    #: None: the mean.
    quantiles: tuple[float, ...] | None
    interpolation: str = "linear"
    weighted_quantile: bool = True
    weighted_leaves: bool = False
    aggregate_leaves_first: bool = True


class LeafQuantiles:
    """Answers queries from samples; keeps the sums of the last query by leaf."""

    def __init__(self, samples: LeafSamples) -> None:
        self._samples, self._places = samples, samples.places
        self._n_outputs, n_places = samples.values.shape
        self._by_leaf: tuple[QuantileQuery, PayloadSums] | None = None
        self._most = int(np.diff(samples.starts).max(initial=0))
        if n_places <= NARROW:  # less the middle, as 16-bit registers have signs
            self._places = (self._places - (1 << 15)).astype(np.int16)
        if samples.single:
            of_leaves = samples.places[:-LANES].reshape(-1, self._n_outputs)
            pairs = zip(samples.values, of_leaves.T, strict=True)
            self._single = [values[places] for values, places in pairs]

    def __call__(
        self, query: QuantileQuery, leaves: NDArray[np.int32], n_jobs: int | None = None
    ) -> Array:
        """Return numbers of shape (n_rows, n_outputs, n_quantiles)."""
        if self._samples.single:
            if query.quantiles is not None:
                return self._found("singles", query, leaves, n_jobs)
            means = [np.mean(values[leaves], axis=1) for values in self._single]
            return np.stack(means, axis=1)[:, :, np.newaxis]
        unweighted, equal, by_leaf = _STATISTICS[query.quantiles is None]
        weighing = by_leaf if query.weighted_leaves else equal
        statistic = weighing if query.weighted_quantile else unweighted
        if query.aggregate_leaves_first:
            return self._found(statistic, query, leaves, n_jobs)
        if self._by_leaf is None or self._by_leaf[0] != query:
            every = np.arange((len(self._samples.starts) - 1) // self._n_outputs)
            alone = every[:, np.newaxis].astype(np.int32)
            answers = self._found(statistic, query, alone, n_jobs)
            whole = ~np.isnan(answers)
            vectors = np.concatenate([np.where(whole, answers, -0.0), whole], axis=1)
            self._by_leaf = query, PayloadSums(vectors.reshape(len(every), -1))
        sums = self._by_leaf[1](leaves, -0.0, n_jobs)
        total, number = np.split(sums.reshape(len(sums), 2 * self._n_outputs, -1), 2, 1)
        with np.errstate(invalid="ignore"):  # of rows without samples
            return np.where(number == 1, total, (total + 0.0) / number)

    def _found(
        self,
        statistic: SampleStatistic,
        query: QuantileQuery,
        leaves: NDArray[np.int32],
        n_jobs: int | None,
    ) -> Array:
        starts, places, values = (
            self._samples.starts,
            self._places,
            self._samples.values,
        )
        n, n_trees = leaves.shape
        most = n_trees * self._most
        narrow = places.dtype == np.int16 and most < MOST_COUNTED
        if not narrow:
            places = self._samples.places
        asked = np.array(query.quantiles or (0.0,), np.float64)
        out = np.full((n, self._n_outputs, len(asked)), np.nan)
        style = INTERPOLATIONS.index(query.interpolation)
        sizes = n, n_trees, *values.shape, len(asked), most, style
        arrays = leaves, starts, places, asked, values, out
        run = routine(_function, statistic, narrow)
        run(1 if n <= FEW_ROWS else n_jobs, *sizes, *arrays)
        return out


def _function(statistic: SampleStatistic, narrow: bool) -> Function:
    from skforge.engine.leaves.samples_function import function

    return function(statistic, narrow)
