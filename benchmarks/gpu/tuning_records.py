"""What a modelled search of Table 5 keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCHES = (512, 1024, 2048, 4096, 8192, 16384)

Rows = list[dict[str, Any]]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Table 5 of one forest on one chip.

    ``seconds`` has a row for each point, NaN where it is not legal, by ``BATCHES``.
    """

    model: str
    chip: str
    seconds: Array
    default: Array  # of the static default schedules
    ours: Array  # the best of skforge's own designs
    ours_names: tuple[str, ...]

    @property
    def legal(self) -> int:
        """Points that can be run."""
        return int((~np.isnan(self.seconds[:, 0])).sum())

    @property
    def best(self) -> Array:
        """The least seconds by batch size."""
        found: Array = np.nanmin(self.seconds, axis=0)
        return found
