"""What leaves hold beside a value: training samples, or vectors that are added up.

A row's answer is then no sum of numbers, or of very many. The leaves that it reaches
are found as for all forests; rows of ``Forest.leaf_value`` number them here, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Places that are read at once, so that many more follow the last list.
LANES = 16


@dataclass(frozen=True, eq=False)
class LeafSamples:
    """The samples of leaves, as places among the sorted targets of each output.

    The samples of leaf row ``i`` for output ``j`` are ``places[starts[k]:starts[k+1]]``
    with ``k = i * n_outputs + j``; their targets are ``values[j, place]``. ``LANES``
    further places follow the last one.
    """

    starts: NDArray[np.int64]
    places: NDArray[np.int32]
    values: NDArray[np.float64]
    #: Whether leaves have one sample each, of which NumPy's quantiles are taken.
    single: bool

    def check(self, n_leaves: int) -> None:
        """Raise ValueError or TypeError unless lists of so many leaves are inside."""
        starts, places, values = self.starts, self.places, self.values
        fits = (
            [part.dtype for part in (starts, places, values)]
            == [np.int64, np.int32, np.float64]
            and (starts.ndim, places.ndim, values.ndim) == (1, 1, 2)
            and len(starts) == n_leaves * len(values) + 1
            and starts[0] == 0
            and starts[-1] == len(places) - LANES
            and bool((starts[1:] >= starts[:-1]).all())
            and 0 <= places.min(initial=0) <= places.max(initial=0) < values.shape[1]
        )
        if not fits or (self.single and len(places) - LANES != len(starts) - 1):
            raise ValueError("the samples do not fit the leaves")


@dataclass(frozen=True, eq=False)
class LeafCurves:
    """Hazards and survival of leaves, (n_leaves, n_times), and risks of single rows.

    The library sums the hazards of one row in another order than those of several.
    """

    risks: NDArray[np.float64]
    times: NDArray[np.float64]
    hazard: NDArray[np.float64] | None
    survival: NDArray[np.float64] | None

    def check(self, n_leaves: int) -> None:
        shape = n_leaves, len(self.times)
        tables: list[Any] = [self.hazard, self.survival]
        shapes = [table.shape for table in tables if table is not None]
        dtypes = {part.dtype for part in (self.risks, *tables) if part is not None}
        fits = shapes in ([], [shape] * 2) and self.risks.shape == (n_leaves, 1)
        if not fits or dtypes != {np.dtype(np.float64)}:
            raise ValueError("the curves do not fit the leaves")
