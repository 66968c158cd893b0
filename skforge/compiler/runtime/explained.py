"""The methods of a compiled module that explain its scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.rows import prepare_rows
from skforge.compiler.runtime.contributions import Contributions
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.compiler.runtime.gpu.cupy import is_device_array
from skforge.compiler.runtime.schedules import check_count
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError


class Explained:
    """Explains the scores of a forest; a base of ``CompiledModule``."""

    forest: Forest
    target: Target
    n_jobs: int | None
    contribs_schedule: dict[BatchRange, Schedule] | None
    _contributions: Contributions | None

    def predict_contribs(
        self,
        X: Any,
        *,
        interactions: bool = False,
        approximate: bool = False,
        background: Any = None,
        n_jobs: int | None = None,
    ) -> Array:
        """Return what each feature contributes to the raw scores (SHAP values).

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            As for :meth:`predict_raw`.
        interactions : bool, default=False
            Return SHAP interaction values, with one more axis of ``n_features + 1``.
        approximate : bool, default=False
            Return Saabas' values instead: the changes of the mean along each path.
        background : array-like of shape (n_background, n_features), default=None
            Take features that are not known from these rows (interventional values)
            instead of following the training rows (path-dependent values).
        n_jobs : int or None
            As for :meth:`predict_raw`.

        Returns
        -------
        ndarray of shape (n_rows, n_features + 1) or (n_rows, n_outputs, n_features + 1)
            In the dtype of the source's sums. The last column is the expected raw
            score; each row adds up to :meth:`predict_raw`, for an IsolationForest
            divided by its number of trees: its mean path length, as in shap.

        Raises
        ------
        UnsupportedModelError
            If the model does not keep the covers of its nodes.
        """
        if is_device_array(X):
            raise InvalidInputError(
                "contributions need rows in host memory, but these are on a GPU; pass "
                "a NumPy array."
            )
        rows = prepare_rows(self.forest, X)
        if background is not None:
            background = prepare_rows(self.forest, background)
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        made = self._explained().answer(
            rows,
            1 if n_jobs is None else resolve_n_jobs(n_jobs),
            interactions=interactions,
            approximate=approximate,
            background=background,
        )
        return made[:, 0] if self.forest.n_outputs == 1 else made

    def _explained(self) -> Contributions:
        """Return the kernels of contributions, which are made on first use."""
        if self._contributions is None:
            given = self.contribs_schedule
            self._contributions = Contributions(self.forest, self.target, given)
        return self._contributions

    def warm_up_contribs(self, batch_sizes: ArrayLike | None = None) -> None:
        """Compile what :meth:`predict_contribs` without options needs."""
        for size in () if batch_sizes is None else np.ravel(batch_sizes):
            check_count(size)
        self._explained().compile_all(batch_sizes)
