"""``TreeExplainer``: SHAP values with the interface of ``shap.TreeExplainer``."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.pipeline.split import flat_steps
from skforge.compiler.runtime.module import CompiledModule
from skforge.estimators import CompiledForest
from skforge.exceptions import InvalidInputError, VerificationError
from skforge.sources.delegation import model_of, start_of

__all__ = ["TreeExplainer"]

Array = NDArray[Any]

#: Share of the sum of absolute contributions by which their sum may miss the score.
ADDITIVE = 1e-2


class TreeExplainer:
    """SHAP values of a tree ensemble, for code written for ``shap.TreeExplainer``.

    Shapes, the order of the axes, ``expected_value`` and the rules of the arguments
    are those of shap 0.51; the values are those of
    :meth:`CompiledForest.predict_contribs`. All background rows are used, while shap
    samples 100 of them. All trees that the model predicts with are used: for a Booster
    that stopped early, these are all its trees, while shap stops at the best iteration.

    Parameters
    ----------
    model : CompiledForest, CompiledModule, or what CompiledForest takes
        A compiled forest, also one that :func:`skforge.load` returned. Any other
        fitted model is compiled with ``tuning="off"``. For a pipeline whose steps fold
        into the trees, the values explain the columns of its input rows; if its first
        steps run in their own library, the columns that these steps return.
    data : array-like of shape (n_background, n_features), default=None
        Background rows, or a ``shap.maskers.Independent`` of them. With rows, the
        values are interventional (Lundberg et al. 2020, Algorithm 3); without, they
        are path-dependent (Lundberg et al. 2018, Algorithm 2).
    model_output : {"raw"}, default="raw"
        The scores explained: margins of boosted models, probabilities of
        scikit-learn's forest classifiers, mean path lengths of an IsolationForest.
    feature_perturbation : {"auto", "interventional", "tree_path_dependent"}, \
            default="auto"
        "auto" is "interventional" with background rows, else "tree_path_dependent".
    feature_names : list of str, default=None
        Names of the columns. None uses those of the explained DataFrame, of the
        background rows, or of the model.
    background : array-like of shape (n_background, n_features), default=None
        Another name for ``data``, as in ``predict_contribs``.
    n_jobs : int, default=None
        Threads of a model that is compiled here, as in :class:`CompiledForest`; an
        already compiled forest keeps its own setting.

    Attributes
    ----------
    model : CompiledForest or CompiledModule
        The compiled model that computes the values.
    expected_value : float or ndarray of shape (n_outputs,)
        The expected score of a row whose features are all unknown.
    data : array-like or None
        The background rows.
    feature_perturbation : str
        "interventional" or "tree_path_dependent".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> from skforge import TreeExplainer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> forest = RandomForestRegressor(10, random_state=0).fit(X, y)
    >>> explainer = TreeExplainer(forest)
    >>> values = explainer.shap_values(X)
    >>> values.shape
    (442, 10)
    >>> sums = explainer.expected_value + values.sum(axis=1)
    >>> bool(abs(sums - forest.predict(X)).max() < 1e-10)
    True
    """

    def __init__(
        self,
        model: Any,
        data: Any = None,
        model_output: str = "raw",
        feature_perturbation: str = "auto",
        feature_names: Any = None,
        *,
        background: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        if model_output != "raw":
            raise InvalidInputError(
                f"model_output must be 'raw'. Got {model_output!r} instead; use "
                "shap.TreeExplainer with background rows to explain probabilities or "
                "losses."
            )
        if background is not None:
            if data is not None:
                raise InvalidInputError(
                    "data and background are two names for the same argument; pass "
                    "only one of them."
                )
            data = background
        self.data = _rows_of_masker(data)
        self.feature_perturbation = _perturbation(feature_perturbation, self.data)
        self.model_output = model_output
        self.data_feature_names = _names(feature_names)
        if self.data_feature_names is None:
            self.data_feature_names = _names(getattr(data, "columns", None))
        self.model = _compiled(model, n_jobs)
        self._expected: Any = None

    def __repr__(self) -> str:
        """Return the size of the model and the kind of values."""
        fast = self.model
        forest = fast.forest_ if isinstance(fast, CompiledForest) else fast.forest
        return (
            f"<TreeExplainer of {forest.n_trees:,} trees, {forest.n_features:,} "
            f"features, {self.feature_perturbation}>"
        )

    @property
    def expected_value(self) -> Any:
        """The expected score of a row whose features are all unknown."""
        if self._expected is None:
            if self.data is None:  # the bias of any row
                fast = self.model
                if isinstance(fast, CompiledForest):
                    fast = fast._compiled().module
                rows = np.zeros((1, fast.forest.n_features), fast.forest.input_dtype)
                found = fast.predict_contribs(rows)
            else:
                found = self._contribs(self.data[:1])
            self._expected = found[0].T[-1]
        return self._expected

    @expected_value.setter
    def expected_value(self, value: Any) -> None:
        self._expected = value

    def shap_values(
        self,
        X: Any,
        y: Any = None,
        tree_limit: int | None = None,
        approximate: bool = False,
        check_additivity: bool = True,
        from_call: bool = False,
    ) -> Array:
        """Return the SHAP values of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_features,)
            Rows, in any form that ``predict_contribs`` takes; also a DMatrix.
        y : None
            Not used: raw scores do not depend on labels.
        tree_limit : int, default=None
            Must be None or -1, which both mean all trees.
        approximate : bool, default=False
            Return Saabas' values instead.
        check_additivity : bool, default=True
            Check that the values of each row add up to its score.
        from_call : bool, default=False
            Not used.

        Returns
        -------
        ndarray of shape (n_samples, n_features) or (n_samples, n_features, n_outputs)
            In the dtype of the source's sums; without the first axis if ``X`` is one
            row of shape (n_features,).

        Raises
        ------
        VerificationError
            If a sum differs from the score, which is a bug in skforge.
        """
        self._check_limit(tree_limit)
        rows, single = _rows(X)
        found = self._contribs(rows, approximate=approximate)
        if check_additivity:
            self._check_sums(found, rows)
        values = found[..., :-1]
        if values.ndim == 3:
            values = np.moveaxis(values, 1, -1)
        return np.ascontiguousarray(values[0] if single else values)

    def shap_interaction_values(
        self, X: Any, y: Any = None, tree_limit: int | None = None
    ) -> Array:
        """Return the SHAP interaction values of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_features,)
            Rows, as in :meth:`shap_values`.
        y : None
            Not used.
        tree_limit : int, default=None
            As in :meth:`shap_values`.

        Returns
        -------
        ndarray of shape (n_samples, n_features, n_features) or \
                (n_samples, n_features, n_features, n_outputs)
            Symmetric; each row adds up to the feature's SHAP value.

        Raises
        ------
        InvalidInputError
            If the explainer has background rows: these interactions are
            path-dependent.
        """
        self._check_limit(tree_limit)
        rows, single = _rows(X)
        values = self._contribs(rows, interactions=True)[..., :-1, :-1]
        if values.ndim == 4:
            values = np.moveaxis(values, 1, -1)
        return np.ascontiguousarray(values[0] if single else values)

    def __call__(
        self,
        X: Any,
        y: Any = None,
        interactions: bool = False,
        check_additivity: bool = True,
        approximate: bool = False,
    ) -> Any:
        """Return the SHAP values of rows as an object that ``shap.plots`` can draw.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, as in :meth:`shap_values`.
        y : None
            Not used.
        interactions : bool, default=False
            Return interaction values.
        check_additivity, approximate : bool
            As in :meth:`shap_values`.

        Returns
        -------
        shap.Explanation
            With ``values``, ``base_values``, ``data`` and ``feature_names``.

        Raises
        ------
        InvalidInputError
            If shap is not installed.
        """
        try:
            from shap import Explanation
        except ImportError as error:
            raise InvalidInputError(
                "explainer(X) returns a shap.Explanation, which needs the shap "
                "package: install it with 'pip install shap', or call "
                "explainer.shap_values(X)."
            ) from error
        start = time.perf_counter()
        rows = _rows(X)[0]
        if not interactions:
            values = self.shap_values(rows, y, None, approximate, check_additivity)
        elif approximate:
            raise InvalidInputError(
                "interactions=True and approximate=True cannot be combined; leave one "
                "of them out."
            )
        else:
            values = self.shap_interaction_values(rows)
        expected = np.asarray(self.expected_value)
        shown, names = self._shown(rows)
        return Explanation(
            values,
            base_values=np.tile(expected, (len(values),) + (1,) * expected.ndim),
            data=shown,
            feature_names=names if names and len(names) == values.shape[1] else None,
            compute_time=time.perf_counter() - start,
        )

    # ------------------------------------------------------------ parts

    def _contribs(self, rows: Any, **options: bool) -> Array:
        if self.data is not None:
            asked = [name for name, given in options.items() if given]
            if asked:
                raise InvalidInputError(
                    f"{asked[0]}=True asks for path-dependent values, but this "
                    "explainer has background rows; use TreeExplainer(model) without "
                    "them."
                )
            found: Array = self.model.predict_contribs(rows, background=self.data)
        else:
            found = self.model.predict_contribs(rows, **options)
        return found

    def _check_limit(self, tree_limit: int | None) -> None:
        n_trees = self._forest.n_trees
        if tree_limit is not None and 0 <= tree_limit < n_trees:
            raise InvalidInputError(
                f"tree_limit must be None or -1: all {n_trees} trees are compiled. Got "
                f"{tree_limit}; compile load_forest(model, iteration_range=...) to "
                "explain fewer."
            )

    def _check_sums(self, found: Array, rows: Any) -> None:
        raw = np.asarray(self.model.predict_raw(rows)).reshape(found.shape[:-1])
        if self._forest.outputs.function == "path_length":
            raw = raw / self._forest.n_trees
        miss = np.abs(found.sum(axis=-1) - raw)
        wrong = miss > ADDITIVE * np.abs(found).sum(axis=-1)  # never for NaN
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise VerificationError(
                f"row {row}: the contributions add up to "
                f"{found[row].sum(axis=-1).tolist()!r}, but the score is "
                f"{raw[row].tolist()!r}; please report the model."
            )

    def _shown(self, X: Any) -> tuple[Any, list[str] | None]:
        """Return the columns explained, as ``shap.plots`` read them, and names."""
        fast, names = self.model, self.data_feature_names
        start = start_of(fast) if isinstance(fast, CompiledForest) else None
        if start is not None:  # steps before make the columns
            made = fast._compiled().source.prepared(X).rows
            steps = Pipeline(flat_steps(model_of(fast))[:start])
            with suppress(AttributeError, ValueError):  # not all steps name columns
                names = list(steps.get_feature_names_out())
            return made.toarray() if hasattr(made, "tocsr") else np.asarray(made), names
        names = _names(getattr(X, "columns", None)) or names
        if names is None:
            names = _names(getattr(fast, "feature_names_in_", None))
        if names is None:
            names = _names(self._forest.feature_names)
        return X.to_numpy() if hasattr(X, "to_numpy") else X, names

    @property
    def _forest(self) -> Forest:
        fast = self.model
        return fast.forest_ if isinstance(fast, CompiledForest) else fast.forest


def _compiled(model: Any, n_jobs: int | None) -> Any:
    """Return a compiled forest as it is, and any other model compiled."""
    if isinstance(model, CompiledModule):
        return model
    if isinstance(model, CompiledForest):
        check_is_fitted(model)
        return model
    fast = CompiledForest(
        model,
        prefit=True,
        target="cpu",
        tuning="off",
        batch_sizes=[1],  # one kernel of scores, which only the sums are compared with
        n_jobs=n_jobs,
    )
    return fast.fit(np.empty((0, 1)))  # checked on drawn rows


def _perturbation(asked: str, data: Any) -> str:
    """Return the kind of values, by shap's rules."""
    if asked not in ("auto", "interventional", "tree_path_dependent"):
        raise InvalidInputError(
            "feature_perturbation must be 'auto', 'interventional' or "
            f"'tree_path_dependent'. Got {asked!r} instead."
        )
    if data is not None:
        if asked == "tree_path_dependent":
            raise InvalidInputError(
                "feature_perturbation='tree_path_dependent' follows the training rows; "
                "leave out data, or use 'interventional'."
            )
        return "interventional"
    if asked == "interventional":
        warnings.warn(
            "feature_perturbation='interventional' needs background rows; without "
            "data, the values are path-dependent, as in shap.",
            FutureWarning,
            stacklevel=3,
        )
    return "tree_path_dependent"


def _rows_of_masker(data: Any) -> Any:
    """Return background rows; those of a shap masker."""
    if not type(data).__module__.startswith("shap."):
        return data
    if type(data).__name__ != "Independent" or data.clustering is not None:
        raise InvalidInputError(
            f"data must be background rows or a shap.maskers.Independent. Got a "
            f"{type(data).__name__} masker instead."
        )
    return data.data


def _rows(X: Any) -> tuple[Any, bool]:
    """Return rows as compiled forests take them, and whether X is one row."""
    if type(X).__module__.startswith("xgboost.") and type(X).__name__ == "DMatrix":
        if X.get_base_margin().size:
            raise InvalidInputError(
                "the DMatrix has base margins, which belong to no feature; pass its "
                "rows as an array."
            )
        return X.get_data(), False
    single = np.ndim(X) == 1 and bool(np.all([np.isscalar(x) for x in X]))
    return (np.asarray(X)[np.newaxis] if single else X), single


def _names(names: Any) -> list[str] | None:
    return None if names is None else list(names)
