"""``TreeExplainer``: SHAP values with the interface of ``shap.TreeExplainer``."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from io import BytesIO
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skforge._container import container_bytes, container_from
from skforge._docs import documented
from skforge._typing import Array
from skforge._version import __version__, check_release
from skforge.estimators import CompiledForest
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    VerificationError,
    check_choice,
)
from skforge.forest.forest import Forest
from skforge.forest.means import Means, explained
from skforge.frontends.content import check_file
from skforge.frontends.pipeline.split import divided_steps
from skforge.modules.compiled import CompiledModule
from skforge.persistence.artifact import from_bytes, to_bytes
from skforge.runtime.records import entry
from skforge.sources.base import given_names
from skforge.sources.fitted import model_of, start_of

__all__ = ["TreeExplainer"]

#: Share of the sum of absolute contributions by which their sum may miss the score.
ADDITIVE = 1e-2


class TreeExplainer:
    """SHAP values of a tree ensemble, for code written for ``shap.TreeExplainer``.

    Members, arguments, shapes, the order of the axes and ``expected_value`` are those
    of shap 0.51 to 0.54; the values are those of
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
    approximate, link, linearize_link : None
        Not used, as in shap.
    background : array-like of shape (n_background, n_features), default=None
        Another name for ``data``, as in ``predict_contribs``.
    n_jobs : int, default=None
        Threads of a model that is compiled here, as in :class:`CompiledForest`; an
        already compiled forest keeps its own setting.

    Attributes
    ----------
    model : CompiledForest or CompiledModule
        The compiled model that computes the values.
    feature_names, data_feature_names, output_names : list of str or None
        The argument; the same, or else the names of the background rows; None.

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
    >>> sums = explainer.expected_value[0] + values.sum(axis=1)
    >>> bool(abs(sums - forest.predict(X)).max() < 1e-10)
    True
    """

    linearize_link, output_names = True, None

    def __init__(
        self,
        model: Any,
        data: Any = None,
        model_output: str = "raw",
        feature_perturbation: str = "auto",
        feature_names: Any = None,
        approximate: Any = None,
        link: Any = None,
        linearize_link: Any = None,
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
        if approximate is not None:
            warnings.warn(
                "approximate has no effect here, as in shap; pass it to shap_values or "
                "to the call of the explainer.",
                DeprecationWarning,
                stacklevel=2,
            )
        self._background = _rows_of_masker(data)
        self.feature_perturbation = _kind_of(feature_perturbation, self._background)
        self.model_output = model_output
        self.feature_names = _names(feature_names)
        columns = _names(getattr(data, "columns", None))
        self.data_feature_names = self.feature_names or columns
        self.model = _compiled(model, n_jobs)
        self._expected: Any = None
        forest = self._forest
        dtype = getattr(self._background, "dtype", forest.input_dtype)
        self._contribs(np.empty((0, forest.n_columns), dtype))  # or raise

    def __repr__(self) -> str:
        """Return the size of the model and the kind of values."""
        forest = self._forest
        return (
            f"<TreeExplainer of {forest.n_trees:,} trees, {forest.n_columns:,} "
            f"features, {self.feature_perturbation}>"
        )

    @property
    def expected_value(self) -> Any:
        """The expected score of a row whose features are all unknown.

        An array of shape (n_outputs,). As in shap, one output has a scalar if there
        are background rows, and also after :meth:`shap_values` of XGBoost, LightGBM or
        CatBoost.
        """
        if self._expected is None and self._background is None:
            self._expected = Means.of(explained(self._forest)).bias
        elif self._expected is None:
            self._expected = self._contribs(self._background[:1])[0].T[-1]
        return self._expected

    @expected_value.setter
    def expected_value(self, value: Any) -> None:
        self._expected = value

    @property
    def data(self) -> Any:
        """The background rows as an array, or None."""
        rows = self._background
        dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
        return None if rows is None else dense

    @property
    def data_missing(self) -> Array | None:
        """Whether each value of the background rows is missing, or None."""
        if hasattr(self._background, "isna"):
            return np.asarray(self._background.isna())
        data = self.data
        return None if data is None else (data != data) | (data == np.array(None))

    @property
    def masker(self) -> Any:
        """The background rows as a ``shap.maskers.Independent``, or None."""
        rows = self._background if hasattr(self._background, "iloc") else self.data
        if rows is None:
            return None
        independent = _of_shap("maskers.Independent", "explainer.masker", "its data")
        return independent(rows, max_samples=rows.shape[0])

    @property
    def link(self) -> Any:
        """``shap.links.identity``, because raw scores are explained."""
        return _of_shap("links.identity", "explainer.link", "the values as they are")

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
        values, rows = self._values(X, tree_limit, approximate=approximate)
        if check_additivity and len(values):
            raw = np.asarray(self.model.predict_raw(rows))
            if self._forest.outputs.function == "path_length":
                raw = raw / self._forest.n_trees
            self.assert_additivity(values, raw)
        return values

    @documented(shap_values)
    def shap_interaction_values(
        self, X: Any, y: Any = None, tree_limit: int | None = None
    ) -> Array:
        """Return the SHAP interaction values of rows.

        Returns
        -------
        ndarray of shape (n_samples, n_features, n_features) or \
                (n_samples, n_features, n_features, n_outputs)
            Symmetric; each row adds up to the feature's SHAP value. With background
            rows they are interventional, which shap has not. As in shap, the outputs
            of CatBoost come first.
        """
        return self._values(X, tree_limit, interactions=True)[0]

    @documented(shap_values)
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
        interactions : bool, default=False
            Return interaction values.

        Returns
        -------
        shap.Explanation
            With ``values``, ``base_values``, ``data`` and ``feature_names``. It needs
            the shap package.
        """
        form = _of_shap("Explanation", "explainer(X)", "explainer.shap_values(X)")
        start = time.perf_counter()
        rows = _rows(X)[0]
        if interactions:
            values = self._values(rows, interactions=True, approximate=approximate)[0]
        else:
            values = self.shap_values(rows, y, None, approximate, check_additivity)
        expected = np.squeeze(self.expected_value)
        shown, names = self._shown(rows)
        first = interactions and self._outputs_first
        n_rows, width = values.shape[first : first + 2]
        return form(
            values,
            base_values=np.tile(expected, (n_rows,) + (1,) * expected.ndim),
            data=shown,
            feature_names=names if names and len(names) == width else None,
            compute_time=time.perf_counter() - start,
        )

    def explain_row(
        self, row: Any, *, main_effects: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Return the values of one row in the form of shap's exact explainer.

        Parameters
        ----------
        row : array-like of shape (n_features,)
            The row.
        main_effects : bool, default=False
            Return the interactions of the features with themselves, too.
        **options
            Other arguments of shap (``max_evals``, ``outputs``) are not used.

        Returns
        -------
        dict
            ``values``, ``expected_values``, ``mask_shapes``, ``main_effects``.
        """
        row = np.ravel(row)
        values, effects = self.shap_values(row), None
        if main_effects:
            effects = self.shap_interaction_values(row)
            ends = (-2, -1) if self._outputs_first else (0, 1)
            effects = np.diagonal(effects, 0, *ends).T
        return {
            "values": values,
            "expected_values": np.squeeze(self.expected_value)[()],
            "mask_shapes": [row.shape],
            "main_effects": effects,
        }

    def assert_additivity(self, phi: Any, model_output: Any) -> None:
        """Check that SHAP values and the expected value add up to raw scores.

        Parameters
        ----------
        phi : ndarray, or list of ndarray of shape (n_samples, n_features)
            What :meth:`shap_values` returns, or an array for each output.
        model_output : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Raw scores; of an IsolationForest, mean path lengths.

        Raises
        ------
        VerificationError
            If a sum differs by more than 1 % of the sum of the absolute values.
        """
        values = np.stack(phi, axis=-1) if isinstance(phi, list) else np.asarray(phi)
        axis = -1 if self._forest.n_outputs == 1 else -2
        values = values[np.newaxis] if values.ndim == -axis else values
        bias = np.squeeze(self.expected_value)
        sums = values.sum(axis=axis) + bias
        raw = np.reshape(model_output, sums.shape)
        size = np.abs(values).sum(axis=axis) + np.abs(bias)
        wrong = np.abs(sums - raw) > ADDITIVE * size  # never for NaN
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise VerificationError(
                f"row {row}: the contributions add up to {sums[row].tolist()!r}, but "
                f"the score is {raw[row].tolist()!r}; please report the model."
            )

    @staticmethod
    def supports_model_with_masker(model: Any, masker: Any) -> bool:
        """Return whether ``TreeExplainer(model, masker)`` works."""
        with suppress(Exception):  # models of all kinds are tried, as in shap
            TreeExplainer(model, masker)
            return True
        return False

    def save(
        self, out_file: Any, model_saver: Any = ".save", masker_saver: Any = ".save"
    ) -> None:
        """Write the explainer to a file for :meth:`load`, without pickles.

        Parameters
        ----------
        out_file : binary file
            Open for writing; it holds one explainer.
        model_saver, masker_saver : ".save"
            The model is written as by :func:`skforge.save`. Background rows must be an
            array or a pandas DataFrame of numbers.
        """
        check_file(out_file, "write")
        _check_functions(model_saver, masker_saver)
        arrays = {"model": np.frombuffer(to_bytes(self.model), np.uint8)}
        record: dict[str, Any] = {"skforge_version": __version__, "kind": "explainer"}
        if self._background is not None:
            arrays["rows"], record["columns"] = _numbers(self._background)
        record["feature_names"] = _plain_names(self.feature_names)
        content = container_bytes(record, arrays)
        self.load(BytesIO(content))  # not all saved models take the same rows
        out_file.write(content)

    @classmethod
    def load(
        cls,
        in_file: Any,
        model_loader: Any = None,
        masker_loader: Any = None,
        instantiate: bool = True,
    ) -> Any:
        """Load an explainer that :meth:`save` wrote; nothing in the file is executed.

        Parameters
        ----------
        in_file : binary file
            Open for reading; it is read to its end.
        model_loader, masker_loader : None
            Not used.
        instantiate : bool, default=True
            False returns the arguments of the explainer in a dict.
        """
        check_file(in_file, "read")
        _check_functions(model_loader, masker_loader)
        record, arrays = container_from(in_file.read(), "the explainer")
        check_release(entry(record, "skforge_version", str), "model", "Save")
        rows: Any = arrays.get("rows")
        columns = entry(record, "columns", list, None)
        fits = columns is None or np.shape(rows)[1:] == (len(columns),)
        if record.get("kind") != "explainer" or "model" not in arrays or not fits:
            raise InvalidModelError("the file holds no explainer; use skforge.load.")
        if columns is not None:
            from pandas import DataFrame

            rows = DataFrame(rows, columns=columns)
        arguments = {
            "model": from_bytes(arrays["model"].tobytes(), "the explainer's model"),
            "data": rows,
            "feature_names": entry(record, "feature_names", list, None),
        }
        return cls(**arguments) if instantiate else arguments

    def _contribs(self, rows: Any, **options: bool) -> Array:
        contribs = self.model.predict_contribs
        return np.asarray(contribs(rows, background=self._background, **options))

    def _values(
        self, X: Any, tree_limit: int | None = None, **options: bool
    ) -> tuple[Array, Any]:
        """Return values with shap's order of the axes, and rows."""
        n_trees = self._forest.n_trees
        if tree_limit is not None and 0 <= tree_limit < n_trees:
            raise InvalidInputError(
                f"tree_limit must be None or -1: all {n_trees} trees are compiled. Got "
                f"{tree_limit}; compile load_forest(model, iteration_range=...) to "
                "explain fewer."
            )
        rows, single = _rows(X)
        contribs = self._contribs(rows, **options)
        interactions = options.get("interactions")
        values = contribs[..., :-1, :-1] if interactions else contribs[..., :-1]
        if interactions and self._outputs_first:
            values = values.swapaxes(0, 1)
        elif self._forest.n_outputs > 1:
            values = np.moveaxis(values, 1, -1)
        libraries = ("xgboost", *(() if interactions else ("lightgbm", "catboost")))
        by_library = self._background is None and self._forest.source in libraries
        if by_library and len(contribs):  # shap takes over the bias that they return
            bias = contribs[0, ..., -1]
            self._expected = np.array(bias[..., -1] if interactions else bias)[()]
        if single:
            values = values[:, 0] if interactions and self._outputs_first else values[0]
        return np.ascontiguousarray(values), rows

    def _shown(self, X: Any) -> tuple[Any, list[str] | None]:
        """Return the columns explained, as ``shap.plots`` read them, and names."""
        fast, names = self.model, self.data_feature_names
        start = start_of(fast) if isinstance(fast, CompiledForest) else None
        if start is not None:  # steps before make the columns
            rows = fast._compiled().source.prepared(X).rows
            steps = Pipeline(divided_steps(model_of(fast))[:start])
            with suppress(AttributeError, ValueError):  # not all steps name columns
                names = list(steps.get_feature_names_out())
            return rows.toarray() if hasattr(rows, "tocsr") else np.asarray(rows), names
        names = _names(getattr(X, "columns", None)) or names
        if names is None:
            in_forest: Any = self._forest.column_names
            names = _names(given_names(getattr(fast, "feature_names_in_", in_forest)))
        return X.to_numpy() if hasattr(X, "to_numpy") else X, names

    @property
    def _outputs_first(self) -> bool:
        """Whether interactions have an axis of outputs before that of rows."""
        return self._forest.source == "catboost" and self._forest.n_outputs > 1

    @property
    def _forest(self) -> Forest:
        fast = self.model
        return fast.forest_ if isinstance(fast, CompiledForest) else fast.forest


def _compiled(model: Any, n_jobs: int | None) -> Any:
    if isinstance(model, CompiledForest):
        check_is_fitted(model)
    if isinstance(model, (CompiledForest, CompiledModule)):
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


def _kind_of(asked: str, data: Any) -> str:
    known = "auto", "interventional", "tree_path_dependent"
    check_choice("feature_perturbation", asked, known)
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


def _of_shap(name: str, call: str, instead: str) -> Any:
    try:
        import shap
    except ImportError as error:
        raise InvalidInputError(
            f"{call} returns a shap.{name}, which needs the shap package: install it "
            f"with 'pip install shap', or use {instead}."
        ) from error
    return attrgetter(name)(shap)


def _check_functions(*functions: Any) -> None:
    if any(name not in (".save", None) for name in functions):
        raise InvalidInputError(
            "skforge writes and reads models and background rows itself, in a format "
            "of its own; leave out savers and loaders, or pickle the explainer."
        )


def _numbers(rows: Any) -> tuple[Array, Any]:
    values = np.asarray(rows)
    if values.dtype.kind not in "biuf":
        raise InvalidInputError(
            "save writes background rows that are an array or a pandas DataFrame of "
            f"numbers. Got {type(rows).__name__} instead; save explainer.model with "
            "skforge.save, and make the explainer again from both."
        )
    return values, _plain_names(getattr(rows, "columns", None))


def _plain_names(names: Any) -> list[Any] | None:
    plain: list[Any] | None = None if names is None else np.asarray(names).tolist()
    if not {type(name) for name in plain or ()} <= {str, int}:
        raise InvalidInputError(
            f"names must be texts or whole numbers to be saved. Got {plain!r} instead."
        )
    return plain
