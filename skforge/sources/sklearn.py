"""Adapters for scikit-learn's forests of every kind.

Each adapter runs the estimator's own validation, so that values, warnings and errors
are those of its own ``predict``; it declines rows that the trees check once more.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from skforge._compat import no_warnings
from skforge.forest.forest import Forest
from skforge.rows.plain import Reading
from skforge.rows.sparse_rows import most_entries
from skforge.sources.base import Answers, Array, Source, register
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.model import StoredModel, StoredRules

#: Attributes that ``fit`` of an ensemble replaces and predictions depend on.
_FITTED = (
    *("tree_", "estimators_", "_predictors", "estimators_features_"),
    *("estimator_weights_", "offset_", "classes_", "init_", "_baseline_prediction"),
)


class SklearnSource(Source):
    facts = RowFacts(declines="not_finite")
    #: Whether ``assume_finite`` leaves its rows unchecked.
    _obeys_config = True

    #: Passed to ``validate_data``, whose messages use its class name.
    _estimator: Any

    def take_live(self, model: Any) -> None:
        self._estimator = model

    def take_stored(self, stored: StoredModel) -> None:
        self._estimator = stored.validator()

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        # gradient boosting multiplies each tree's leaves by it in every call
        known = vars(model)  # a program may set an init_ of its own on any model
        traces = [known.get("learning_rate")] if "init_" in known else []
        for name in _FITTED:
            value = vars(model).get(name)
            traces.append(value)
            if isinstance(value, np.ndarray) and value.dtype == object:
                value = value.ravel().tolist()
            if isinstance(value, list):
                rounds = [part if isinstance(part, list) else [part] for part in value]
                traces += [getattr(tree, "tree_", tree) for tree in chain(*rounds)]
        return traces

    def reading(self) -> Reading | None:
        return self._reading(objects=True)

    def takes(self, X: Array) -> bool:
        fine, known = self.facts.declines == "nothing", sys.modules.get("sklearn")
        if known is not None and self._obeys_config:
            fine = fine or known.get_config()["assume_finite"]
        return len(X) > 0 and (fine or self._takes(X))

    def _takes(self, values: Array) -> bool:
        # Four times faster than a sum, which numpy casts in chunks.
        if np.isfinite(values).all():
            return True
        return self.facts.declines == "infinite" and not np.isinf(values).any()

    def _validated(self, X: Any, tree: Any = None, **options: Any) -> Any:
        from sklearn.utils.validation import validate_data

        if tree is None:
            self.origin.check_fitted()
        by = self._estimator if tree is None else tree
        X = validate_data(by, X, reset=False, **options)
        wanted = options.get("dtype")
        if wanted is np.float32 and X.dtype != wanted:  # a frame of sparse booleans
            raise ValueError(f"X.dtype should be np.float32, got {X.dtype}")
        return X

    def _for_trees(self, X: Any, tree: Any = None) -> Any:
        nan = self.rules.nan and not hasattr(X, "tocsr")
        finite: Any = "allow-nan" if nan else True
        how = {"accept_sparse": "csr", "ensure_all_finite": finite}
        X = self._validated(X, tree, dtype=np.float32, **how)
        if not hasattr(X, "tocsr"):
            return X
        if not _has_short_indices(X):
            raise ValueError("No support for np.int64 index based sparse matrices")
        return self._gaps_go_right(X)

    def _gaps_go_right(self, rows: Any) -> Any:
        """Return sparse rows with inf for NaN, which fails ``<=`` in trees' own code.

        Frames of sparse columns have such. None if a tree would send inf left.
        """
        missing = np.isnan(rows.data)
        if missing.any():
            if np.isinf(self.forest.threshold).any():
                return None
            rows = rows.copy()
            rows.data[missing] = np.inf
        return rows

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":  # not a method of the model
            return self.raw(self._as_trees_get(X))
        return super()._call(method, X, **params)

    def _as_trees_get(self, X: Any) -> Any:
        return X

    def _raw(self, rows: Array) -> Any:
        from sklearn import config_context

        # feature names: the rows have none
        with no_warnings(), config_context(assume_finite=True):
            scores = np.array(self._scores(rows), order="C")  # as kernels write them
        return scores.reshape(-1) if self.forest.n_outputs == 1 else scores

    def _scores(self, rows: Array) -> Any:
        """Return raw scores as the estimator computes them, on one thread."""
        serial = self._serial()
        scores = getattr(serial, "predict_proba", serial.predict)(rows)
        return np.concatenate(scores, axis=1) if isinstance(scores, list) else scores

    def _serial(self) -> Any:
        """Return a copy with one thread: several would add trees as they finish."""
        serial = copy.copy(self.model)
        params = serial.get_params(deep=False)
        if "n_jobs" in params:
            serial.n_jobs = 1
        if "verbose" in params:
            serial.verbose = 0
        return serial


def _has_short_indices(X: Any) -> bool:
    return bool(X.indices.dtype == X.indptr.dtype == np.dtype(np.intc))


def _takes_nan(tree: Any) -> bool:
    return bool(tree._support_missing_values(np.zeros((1, 1), np.float32)))


@dataclass(frozen=True)
class NanRules(StoredRules):
    """Whether a model's trees accept missing values in dense rows."""

    nan: bool


@dataclass(frozen=True)
class TreesRules(NanRules):
    """Also whether the model is one tree, without an ensemble around it."""

    single: bool


@register
class TreesSource(SklearnSource):
    kind = "trees"
    rules_type: ClassVar[type[StoredRules]] = TreesRules

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        single = self.rules.single
        self.answers = Answers(flat_leaves=single, leaves_by_column=not single)
        if self.rules.nan:
            self.facts = replace(self.facts, declines="infinite")

    @classmethod
    def detects(cls, model: Any) -> bool:
        return hasattr(model, "_validate_X_predict")

    @classmethod
    def rules_of(cls, model: Any) -> TreesRules:
        single = hasattr(model, "tree_")
        tree = model if single else model.estimators_[0]
        return TreesRules(_takes_nan(tree), single)

    def _rows(self, X: Any, method: str) -> Any:
        return self._for_trees(X)


@dataclass(frozen=True)
class EmbeddingRules(TreesRules):
    """Also whether its matrices are sparse."""

    sparse: bool


@register
class EmbeddingSource(TreesSource):
    """RandomTreesEmbedding, whose raw scores are columns of the matrix it returns."""

    classes = ("sklearn.ensemble._forest.RandomTreesEmbedding",)
    kind = "embedding"
    rules_type = EmbeddingRules
    explains = False

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        matrix: Any = "sparse" if self.rules.sparse else "dense"
        self.answers = Answers(matrix=matrix, leaves_by_column=True)

    @classmethod
    def detects(cls, model: Any) -> bool:
        return super(TreesSource, cls).detects(model)

    @classmethod
    def rules_of(cls, model: Any) -> EmbeddingRules:
        sparse = bool(model.one_hot_encoder_.sparse_output)
        return EmbeddingRules(_takes_nan(model.estimators_[0]), False, sparse)

    def _scores(self, rows: Array) -> Any:
        matrix = self.model.one_hot_encoder_.transform(self.model.apply(rows))
        columns = matrix.indices if self.rules.sparse else np.nonzero(matrix)[1]
        return columns.reshape(len(rows), -1).astype(self.forest.accumulator_dtype)


@dataclass(frozen=True)
class BoostingRules(NanRules):
    """Also the number of stages and of trees in each, and the kind of model."""

    shape: tuple[int, int]
    classifier: bool

    def suits(self, forest: Forest) -> bool:
        return int(np.prod(self.shape, dtype=object)) == forest.n_trees


@register
class GradientBoostingSource(SklearnSource):
    """GradientBoosting*: finite float32 rows; leaf numbers are floats."""

    classes = ("sklearn.ensemble._gb.BaseGradientBoosting",)
    kind = "boosting"
    staged = True
    rules_type = BoostingRules

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        shape = self.rules.shape[: 1 + self.rules.classifier]
        self.answers = Answers(leaf_dtype="<f8", leaf_shape=shape)

    def take_live(self, model: Any) -> None:
        super().take_live(model)
        self._tree = model.estimators_[0, 0]

    def take_stored(self, stored: StoredModel) -> None:
        super().take_stored(stored)  # trees are trained on arrays without names
        self._tree = stored.validator("DecisionTreeRegressor", names=False)

    @classmethod
    def rules_of(cls, model: Any) -> BoostingRules:
        trees = model.estimators_
        shape = int(trees.shape[0]), int(trees.shape[1])
        return BoostingRules(_takes_nan(trees[0, 0]), shape, hasattr(model, "classes_"))

    def _rows(self, X: Any, method: str) -> Any:
        """Validate as the estimator does, and then as its first tree does."""
        if method != "apply":
            X = self._validated(X, dtype=np.float32, order="C", accept_sparse="csr")
        elif not self.rules.classifier and not hasattr(X, "shape"):
            return None  # the regressor reads X.shape at the end
        rows = self._for_trees(X, self._tree)
        if method == "apply" and type(rows) is np.ndarray and np.isnan(rows).any():
            return None  # `apply` accepts them, but treats them differently
        return rows

    def stage(self, method: str, answer: Any) -> Any:
        """Keep the axis of one column, and drop that of one row, as the model does."""
        one = self.forest.n_outputs == 1 and self.rules.classifier
        if one and method == "decision_function":
            return answer.reshape(-1, 1)
        return answer[0] if one and method == "predict" and len(answer) == 1 else answer

    def _scores(self, rows: Array) -> Any:
        dense = isinstance(rows, np.ndarray)
        return self.model._raw_predict(np.ascontiguousarray(rows) if dense else rows)


@register
class IsolationSource(SklearnSource):
    """IsolationForest: float32 rows, otherwise unchecked."""

    classes = ("sklearn.ensemble._iforest.IsolationForest",)
    kind = "isolation"
    facts = RowFacts()

    def _rows(self, X: Any, method: str) -> Any:
        """Validate as the estimator does."""
        rows = self._validated(
            X, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
        )
        if not hasattr(rows, "tocsr"):
            return rows
        part = rows[:1]  # its trees get slices, whose indices SciPy may narrow
        if not _has_short_indices(part):
            return None
        return self._gaps_go_right(rows)

    def _scores(self, rows: Array) -> Any:
        """Return path lengths, which the estimator keeps private."""
        model = self.model
        drawn = model._max_features != rows.shape[1]
        lengths = np.zeros(rows.shape[0])
        for tree, features, depth, further in zip(
            model.estimators_,
            model.estimators_features_,
            model._decision_path_lengths,
            model._average_path_length_per_tree,
            strict=True,
        ):
            drawn_rows = rows[:, features] if drawn else rows
            if not hasattr(rows, "tocsr"):
                drawn_rows = np.ascontiguousarray(drawn_rows)
            leaf = tree.apply(drawn_rows, check_input=False)
            lengths += depth[leaf] + further[leaf] - 1.0
        return lengths


class _OverTreesSource(SklearnSource):
    """Ensembles whose trees cast to float32 and check the result."""

    _obeys_config = False
    rules_type = NanRules

    @classmethod
    def rules_of(cls, model: Any) -> NanRules:
        from sklearn.utils import get_tags

        trees = model.estimators_
        return NanRules(all(get_tags(tree).input_tags.allow_nan for tree in trees))

    def _rows(self, X: Any, method: str) -> Any:

        if self.warning or not hasattr(X, "tocsr"):
            return None  # usual rows were read: it warns and raises by itself
        X = self._as_trees_get(X)
        return self._sparse(X) if X.dtype.kind in "fiub" else None

    def _unaided(self, X: Any, method: str) -> Any:
        from sklearn.utils.validation import check_array

        X = self._as_trees_get(X)
        if hasattr(X, "tocsr"):
            rows = self._sparse(X)
        else:
            with np.errstate(all="ignore"):
                values = X.astype(np.float32, copy=False)
            taken = self._takes(values) or self._takes_none(X, values)
            rows = values if taken else None
        if rows is None:
            nan = self.facts.declines == "infinite" and not hasattr(X, "tocsr")
            check_array(  # raises as its trees do, unless there are duplicates
                X,
                accept_sparse="csr",
                dtype=np.float32,
                ensure_all_finite="allow-nan" if nan else True,
                input_name="X",
            )
        return rows

    def _takes_none(self, X: Array, values: Array) -> bool:
        """Tell whether trees get None, which the ensemble's own check lets pass."""
        return False

    def _sparse(self, X: Any) -> Any:
        """Return sparse rows after each tree's own check."""
        from sklearn.utils.validation import check_array

        X = X.tocsr()
        with np.errstate(all="ignore"):
            # SciPy's cast adds duplicate entries; without a cast, the last one counts
            rows = check_array(
                X, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
            )
        if not _has_short_indices(rows) or not np.isfinite(rows.data).all():
            return None
        # three entries are added in the order of a sort of the tree's drawn columns
        unsure = rows.nnz != X.nnz and most_entries(X) > 2
        return None if unsure else rows


@register
class BaggingSource(_OverTreesSource):
    """Bagging over trees: NaN is accepted if all trees accept it."""

    classes = (
        "sklearn.ensemble._bagging.BaggingClassifier",
        "sklearn.ensemble._bagging.BaggingRegressor",
    )
    kind = "bagging"
    answers = Answers(log_proba="model")  # it adds logarithms

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        if self.rules.nan:
            self.facts = replace(self.facts, declines="infinite")

    def _as_trees_get(self, X: Any) -> Any:
        return self._validated(
            X, accept_sparse=["csr", "csc"], dtype=None, ensure_all_finite=False
        )


@register
class AdaBoostSource(_OverTreesSource):
    """AdaBoost*: rows must be finite before and after the cast."""

    classes = (
        "sklearn.ensemble._weight_boosting.AdaBoostClassifier",
        "sklearn.ensemble._weight_boosting.AdaBoostRegressor",
    )
    kind = "adaboost"
    staged = True

    def _takes_none(self, X: Array, values: Array) -> bool:
        nan = self.rules.nan and X.dtype == np.object_
        return nan and not np.isinf(values).any()

    def _as_trees_get(self, X: Any) -> Any:
        return self._validated(
            X, accept_sparse=["csr", "csc"], allow_nd=True, dtype=None
        )

    def _scores(self, rows: Array) -> Any:
        """Return sums of votes, which it returns only divided, or predictions."""
        if not hasattr(self.model, "classes_"):
            return np.array([tree.predict(rows) for tree in self.model.estimators_]).T
        classes = self.model.classes_[:, np.newaxis]
        others = -1 / (len(classes) - 1)
        members = zip(
            self.model.estimators_, self.model.estimator_weights_, strict=False
        )
        return sum(
            np.where((tree.predict(rows) == classes).T, weight, others * weight)
            for tree, weight in members
        )
