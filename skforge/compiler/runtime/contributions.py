"""Contributions of features to raw scores (SHAP values) of a compiled forest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.defaults.contributions import contribution_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import Means
from skforge.compiler.forest.path_means import approximate, changes
from skforge.compiler.ir.mir.nodes import Element
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
        self.forest, self._target = forest, target
        self._changes: tuple[Means, Any, KernelCache] | None = None
        self._kernels = KernelCache(forest, target, "exact")
        self._schedules: dict[Element, Schedule] = {
            "contribution": schedule or contribution_schedules(forest, "contributions"),
            "interaction": contribution_schedules(forest, "interactions"),
        }

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
        width = self.forest.n_features + 1
        return self._filled("interaction", rows, threads, (width, width))

    def approximate(self, rows: Array, threads: int) -> Array:
        """Return the changes of the mean along each row's paths (Saabas 2014)."""
        forest = self.forest
        check_covers(forest)
        if self._changes is None:
            means = Means.of(forest)
            numbered = replace(forest, source_node=np.arange(forest.n_nodes))
            leaves = KernelCache(numbered, self._target, "exact")
            self._changes = means, changes(forest, means), leaves
        means, table, kernels = self._changes
        reached = np.empty((len(rows), forest.n_trees), np.int32)
        if reached.size:
            kernel = kernels.kernel(self._schedules["contribution"], "leaf_number")
            assert isinstance(kernel, Kernel)
            kernel(rows, reached, threads)
        return approximate(forest, means, table, reached)

    def against(self, rows: Array, background: Array, threads: int) -> Array:
        """Return interventional SHAP values: features that are not known come from
        background rows (Lundberg et al. 2020, Algorithm 3).
        """
        raise NotImplementedError

    def values(self, rows: Array, threads: int) -> Array:
        """Return the SHAP values of rows, with the bias last.

        They are path-dependent: a feature that is not known follows the training rows,
        as counted by the covers of the nodes (Lundberg et al. 2018, Algorithm 2).

        Returns
        -------
        ndarray of shape (n_rows, n_outputs, n_features + 1)
            In the dtype of the forest's sums.
        """
        width = self.forest.n_features + 1
        return self._filled("contribution", rows, threads, (width,))

    def _filled(
        self, element: Element, rows: Array, threads: int, inner: tuple[int, ...]
    ) -> Array:
        """Return what a kernel gives for rows; a forest without tests has the bias."""
        forest = self.forest
        check_covers(forest)
        n = len(rows)
        made = np.zeros((n, forest.n_outputs, *inner), forest.accumulator_dtype)
        if not forest.n_predicates:
            made.reshape(n, forest.n_outputs, -1)[..., -1] = Means.of(forest).bias
        elif n:
            kernel = self._kernels.kernel(self._schedules[element], element)
            assert isinstance(kernel, Kernel)
            kernel(rows, made.reshape(n, -1), threads)
        return made


def check_covers(forest: Forest) -> None:
    """Raise unless a forest's leaves are added and its nodes have covers."""
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            f"the model takes the {forest.aggregate} of its trees, and contributions "
            "are defined for sums."
        )
    if forest.n_nodes and not len(forest.cover):
        raise UnsupportedModelError(
            f"this {forest.source} model does not keep how many rows reached each node;"
            " pass background rows, with which contributions need no such counts."
        )
