"""Quantiles and means of the training samples in the leaves that a row reaches.

They have the arithmetic of ``quantile-forest`` or, where each leaf has one sample, that
of NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.compiler.forest.leaf_payloads import LANES, LeafSamples
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.cpu.threads import parallel_for_pointer
from skforge.compiler.runtime.kernels import address_of
from skforge.compiler.runtime.leaves.sums import PayloadSums
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function
    from skforge.compiler.runtime.leaves.samples_function import SampleStatistic

#: Fewest rows of a thread.
LEAST_ROWS = 64

INTERPOLATIONS = "linear", "lower", "higher", "midpoint", "nearest"


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
        self._samples = samples
        self._by_leaf: tuple[QuantileQuery, PayloadSums] | None = None
        if samples.single:
            places = samples.places[:-LANES].reshape(-1, len(samples.values))
            each = zip(samples.values, places.T, strict=True)
            self._single = [values[place] for values, place in each]

    def __call__(
        self, query: QuantileQuery, leaves: NDArray[np.int32], n_jobs: int | None = None
    ) -> Array:
        """Return numbers of shape (n_rows, n_outputs, n_quantiles)."""
        if self._samples.single:
            if query.quantiles is not None:
                parts = self._find("ranks", query, leaves, n_jobs, turn=0.0)
                return between(parts, query.interpolation, numpys=True)
            means = [np.mean(values[leaves], axis=1) for values in self._single]
            return np.stack(means, axis=1)[:, :, None]
        if query.aggregate_leaves_first:
            return self._aggregated(query, leaves, n_jobs)
        if self._by_leaf is None or self._by_leaf[0] != query:
            every = np.arange((len(self._samples.starts) - 1) // self._n_outputs)
            answers = self._aggregated(query, every[:, None].astype(np.int32), n_jobs)
            whole = ~np.isnan(answers)
            vectors = np.concatenate([np.where(whole, answers, -0.0), whole], axis=1)
            self._by_leaf = query, PayloadSums(vectors.reshape(len(every), -1))
        sums = self._by_leaf[1](leaves, -0.0, n_jobs)
        total, number = np.split(sums.reshape(len(sums), 2 * self._n_outputs, -1), 2, 1)
        with np.errstate(invalid="ignore"):  # of rows without samples
            return np.where(number == 1, total, (total + 0.0) / number)

    @property
    def _n_outputs(self) -> int:
        return len(self._samples.values)

    def _aggregated(
        self, query: QuantileQuery, leaves: NDArray[np.int32], n_jobs: int | None
    ) -> Array:
        weighted = query.weighted_quantile
        if query.quantiles is None:
            statistic: SampleStatistic = "mean" if weighted else "average"
            return self._find(statistic, query, leaves, n_jobs)[..., 0]
        shares = query.weighted_leaves and weighted
        statistic = "weights" if shares else "counts" if weighted else "ranks"
        parts = self._find(statistic, query, leaves, n_jobs)
        return between(parts, query.interpolation)

    def _find(
        self,
        statistic: SampleStatistic,
        query: QuantileQuery,
        leaves: NDArray[np.int32],
        n_jobs: int | None,
        turn: float = 1.0,
    ) -> Array:
        """Return numbers of shape (n_rows, n_outputs, n_quantiles, 4)."""
        samples, (n, n_trees) = self._samples, leaves.shape
        n_outputs, n_places = samples.values.shape
        asked = np.array(query.quantiles or (0.0,), np.float64)
        out = np.full((n, n_outputs, len(asked), 4), np.nan)
        pfor, threads = (None, 1) if n <= LEAST_ROWS else parallel_for_pointer(n_jobs)
        sizes = (
            *(n, max(LEAST_ROWS, -(-n // threads))),
            *(n_trees, n_outputs, n_places, len(asked), query.weighted_leaves),
            *(samples.single, n_trees * samples.most),
        )
        arrays: list[Array] = [leaves, samples.starts, samples.places]
        arrays += asked, samples.values, out
        slots = struct.pack("9qd6q", *sizes, turn, *map(address_of, arrays))
        _compiled(statistic).function(f"skf_leaf_{statistic}")(slots, pfor, threads)
        return out


def between(parts: Array, interpolation: str, *, numpys: bool = False) -> Array:
    """Return quantiles from the samples around them, as the library or NumPy does."""
    low, high, fraction, below = np.moveaxis(parts, -1, 0)
    if interpolation == "lower":
        return low
    if interpolation == "nearest":
        upper, even = fraction >= 0.5, below % 2 == 0
        upper = np.where(abs(fraction - 0.5) < 1e-16, even, upper)
        return np.where(upper, high, low)
    if interpolation == "higher":
        return high
    if interpolation == "midpoint" and not numpys:
        return np.where(low == high, low, 0.5 * (low + high))
    if interpolation == "midpoint":
        fraction = np.where(fraction > 0, 0.5, 0.0)
    step = high - low
    with np.errstate(invalid="ignore"):  # fractions between equal samples
        answer = low + fraction * step
    if numpys:
        answer = np.where(fraction >= 0.5, high - step * (1 - fraction), answer)
    return np.where(low == high, low, answer)


@lru_cache(maxsize=8)
def _compiled(statistic: SampleStatistic) -> Any:
    def write() -> Sequence[Function]:
        from skforge.compiler.runtime.leaves.samples_function import function

        return [function(statistic)]

    return program(("leaf samples", statistic), write, Target.host())
