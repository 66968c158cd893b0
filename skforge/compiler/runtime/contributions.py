"""Contributions of features to raw scores (SHAP values) of a compiled forest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.defaults.contributions import (
    background_schedule,
    contribution_schedules,
)
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import Means
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.layouts.background.background import game_of
from skforge.compiler.layouts.background.given import background_tables
from skforge.compiler.runtime.kernels import Kernel, KernelCache
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, UnsupportedModelError

Array = NDArray[Any]


class Contributions:
    """The kernels of a forest's contributions, each compiled on first use."""

    def __init__(
        self, forest: Forest, target: Target, schedule: Schedule | None = None
    ) -> None:
        self.forest = forest
        self._kernels = KernelCache(forest, target, "exact")
        self._background = BackgroundKernels(self._kernels)
        self._schedule = schedule or contribution_schedules(forest)

    def answer(
        self,
        rows: Array,
        threads: int,
        *,
        interactions: bool,
        approximate: bool,
        background: Array | None,
    ) -> Array:
        """Return contributions as the options ask; see ``predict_contribs``."""
        asked = {
            "interactions=True": interactions,
            "approximate=True": approximate,
            "background rows": background is not None,
        }
        names = [name for name, given in asked.items() if given]
        if len(names) > 1:
            raise InvalidInputError(
                f"predict_contribs takes one of {' and '.join(names)}, not both."
            )
        if background is not None:
            return self.against(rows, background, threads)
        if interactions:
            return self.interactions(rows, threads)
        if approximate:
            return self.approximate(rows, threads)
        return self.values(rows, threads)

    def interactions(self, rows: Array, threads: int) -> Array:
        """Return SHAP interaction values (Lundberg et al. 2018, section 4).

        Returns
        -------
        ndarray of shape (n_rows, n_outputs, n_features + 1, n_features + 1)
            Symmetric; each row adds up to the feature's SHAP value.
        """
        raise NotImplementedError

    def approximate(self, rows: Array, threads: int) -> Array:
        """Return the changes of the mean along each row's paths (Saabas 2014)."""
        raise NotImplementedError

    def against(self, rows: Array, background: Array, threads: int) -> Array:
        """Return interventional SHAP values, with the bias last.

        Features that are not known come from background rows; values are averaged over
        these, and the bias is their mean raw score (Lundberg et al. 2020, Algorithm 3).

        Returns
        -------
        ndarray of shape (n_rows, n_outputs, n_features + 1)
            In the dtype of the forest's sums.

        Raises
        ------
        InvalidInputError
            If there are no background rows.
        UnsupportedModelError
            If the forest does not add its leaves.
        """
        forest = self.forest
        check_sum(forest)
        if not len(background):
            raise InvalidInputError(
                "background has no rows; pass at least one, such as a sample of the "
                "training rows."
            )
        shape = len(rows), forest.n_outputs, forest.n_features + 1
        made = np.zeros(shape, forest.accumulator_dtype)
        if not forest.n_predicates:
            made[..., -1] = reference_raw(forest, background[:1])
        elif len(rows):
            kernel = self._background.kernel(background)
            kernel(rows, made.reshape(len(rows), -1), threads)
        return made

    def values(self, rows: Array, threads: int) -> Array:
        """Return the SHAP values of rows, with the bias last.

        They are path-dependent: a feature that is not known follows the training rows,
        as counted by the covers of the nodes (Lundberg et al. 2018, Algorithm 2).

        Returns
        -------
        ndarray of shape (n_rows, n_outputs, n_features + 1)
            In the dtype of the forest's sums.
        """
        forest = self.forest
        check_covers(forest)
        shape = len(rows), forest.n_outputs, forest.n_features + 1
        made = np.zeros(shape, forest.accumulator_dtype)
        if not forest.n_predicates:
            made[..., -1] = Means.of(forest).bias
        elif len(rows):
            kernel = self._kernels.kernel(self._schedule, "contribution")
            assert isinstance(kernel, Kernel)
            kernel(rows, made.reshape(len(rows), -1), threads)
        return made


class BackgroundKernels:
    """The kernel of the last background rows; the code is the same for all."""

    def __init__(self, kernels: KernelCache) -> None:
        self._kernels = kernels
        self._last: tuple[Array, Kernel] | None = None

    def kernel(self, background: Array) -> Kernel:
        """Return the kernel that reads these background rows."""
        last = self._last
        if last is not None and _same_bits(last[0], background):
            return last[1]
        schedule = background_schedule()
        kernel = self._kernels.kernel(schedule, "contribution")
        assert isinstance(kernel, Kernel)
        game = game_of(self._kernels.bind(schedule))
        made = kernel.with_data(background_tables(game, background))
        self._last = background.copy(), made
        return made


def _same_bits(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    words = np.uint32 if a.itemsize == 4 else np.uint64
    return bool((a.view(words) == np.ascontiguousarray(b).view(words)).all())


def check_sum(forest: Forest) -> None:
    """Raise unless a forest's leaves are added."""
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            f"the model takes the {forest.aggregate} of its trees, and contributions "
            "are defined for sums."
        )


def check_covers(forest: Forest) -> None:
    """Raise unless a forest's leaves are added and its nodes have covers."""
    check_sum(forest)
    if forest.n_nodes and not len(forest.cover):
        raise UnsupportedModelError(
            f"this {forest.source} model does not keep how many rows reached each node;"
            " pass background rows, with which contributions need no such counts."
        )
