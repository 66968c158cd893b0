"""The conditions that schedules are compared under, and the features they get."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.target import Target
from skforge.tuning.cost.forest_facts import ForestFacts

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions shared by all compared schedules."""

    forest: ForestFacts
    target: Target
    n_rows: int
    n_threads: int = 1


@dataclass(frozen=True, slots=True)
class Featured:
    """Features of schedules, and estimates of their times by rules of thumb."""

    #: A row for each schedule, with the features in the order of ``names_of``.
    matrix: Array
    #: Natural logarithm of the estimated ns per row; the model learns the error.
    log_estimate: Array
