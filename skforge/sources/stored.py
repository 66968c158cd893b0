"""Rows of a model that is kept as data: the source's rules without the source.

The sources of the other modules read little from their model: names, widths, a few
flags. Here they get a stand-in with just these, so that rows are taken by the same
code. What they decline nobody is left to answer, and one error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import FrameColumns, is_pandas, is_table
from skforge.compiler.forest.mistakes import mistake_in
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.forest.rows import prepare_rows
from skforge.exceptions import (
    InvalidInputError,
    SourceNeededError,
)
from skforge.sources.base import Source
from skforge.sources.files import ForestSource
from skforge.sources.lightgbm import LightGBMBoosterSource, LightGBMSource
from skforge.sources.sklearn import (
    AdaBoostSource,
    BaggingSource,
    EnsembleSource,
    GradientBoostingSource,
    IsolationSource,
    SklearnSource,
)
from skforge.sources.stored_model import (
    StoredModel,
)
from skforge.sources.xgboost import BoosterSource, XGBoostSource

Array = NDArray[Any]

# ------------------------------------------------------------ taking rows


class StoredSource:
    """Rows by the source's own rules; what they decline is an error."""

    def __init__(self, model: StoredModel, inner: Source) -> None:
        self._model, self._inner = model, inner
        self.fill, self.labels = inner.fill, inner.labels
        self.leaf_dtype, self.flat_leaves = inner.leaf_dtype, inner.flat_leaves
        self.leaf_shape = getattr(inner, "leaf_shape", None)
        self.plain = inner.plain
        #: What compiled entries have to leave to the source; see ``_entries``.
        self.declines = getattr(inner, "declines", None)

    def rows(self, X: Any, method: str) -> Any:
        """Return rows for the kernels; None only where the answer is kept."""
        if type(X).__name__ == "RecordBatch" and is_table(X):
            from pyarrow import Table

            X = Table.from_batches([X])  # the same rows, of which more is known
        rows = self._inner.rows(X, method)
        if rows is not None:
            return rows
        if self._answer(X, method) is not None:
            return None
        self._decline(X, method)

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Answer for 0 rows; for all else there is nobody to ask."""
        answer = None if params else self._answer(X, method)
        if answer is not None:
            return answer
        if params:
            self._model.refuse(f"{method} with {', '.join(sorted(params))}")
        self._decline(X, method)

    def raw(self, rows: Array) -> Array:
        """Return the reference evaluation's scores."""
        raw = reference_raw(self._model.forest, rows)
        return raw[:, 0] if self._model.forest.n_outputs == 1 else raw

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return nothing: there is no source to compare with."""
        return {}

    def _answer(self, X: Any, method: str) -> Array | None:
        kept = self._model.rules.get("of_no_rows", {}).get(method)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if kept is None or shape != (0, self._model.forest.n_features):
            return None
        return np.empty(kept[1], kept[0])

    def _decline(self, X: Any, method: str) -> Any:
        width = self._model.forest.n_features
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if len(shape) == 2 and shape[1] != width:
            raise InvalidInputError(
                f"the model was trained on {width} features, but the rows have "
                f"{shape[1]} columns."
            )
        categories = any(self._model.forest.category_names)
        by_name = categories and (is_pandas(X) or is_table(X))
        why = None if by_name else mistake_in(X, width)
        if why is not None:
            raise InvalidInputError(why)
        names = self._model.rules.get("feature_names")
        wanted = f"{width} columns of finite numbers"
        if self._model.sklearn_tags().input_tags.allow_nan:
            wanted += " or NaN"
        if names:
            wanted += f", named {', '.join(names)}, in this order"
        if categories and is_pandas(X):
            wanted += _categories_wanted(X, self._model.forest)
        if hasattr(X, "tocsr"):
            wanted += (
                "; of sparse rows, a csr_matrix of floats with no entry twice (see its "
                "sum_duplicates)"
            )
        self._model.refuse(
            f"{method} of these rows ({type(X).__name__}"
            f"{f' of shape {shape}' if shape else ''})",
            f"what is known of its rows is that it takes {wanted}",
        )


def _categories_wanted(X: Any, forest: Forest) -> str:
    """Return what an error says of the columns with categories."""
    given = [str(name) for name in X.columns]
    told = [given[i] for i, names in enumerate(forest.category_names) if names]
    text = f", with categories in {', '.join(told)} and no other column"
    new = FrameColumns(forest.category_names).unseen(X)
    for column, names in new.items():
        text += f"; {column} has {', '.join(map(repr, names[:5]))}, unknown to it"
    return text


def stored_source(model: StoredModel, forest: Forest) -> Source:
    """Return the adapter of a model that is kept as data."""
    return StoredSource(model, _BY_KIND[model.kind](model, forest))


class _StandIn(BaseEstimator):  # type: ignore[misc]
    """What scikit-learn's validation asks an estimator for."""

    _stored: StoredModel

    def fit(self) -> None:
        """Exist: that makes it an estimator to ``check_is_fitted``."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        return self._stored.sklearn_tags()

    def _validate_X_predict(self, X: Any, check_input: bool = True) -> Any:
        nan = self._stored.rules["nan"] and not hasattr(X, "tocsr")
        X = validate_data(
            self,
            X,
            dtype=np.float32,
            accept_sparse="csr",
            reset=False,
            ensure_all_finite="allow-nan" if nan else True,
        )
        if hasattr(X, "tocsr") and not (
            X.indices.dtype == X.indptr.dtype == np.dtype(np.intc)
        ):
            raise ValueError("No support for np.int64 index based sparse matrices")
        return X

    def _check_X(self, X: Any) -> Any:
        return validate_data(
            self,
            X,
            accept_sparse=["csr", "csc"],
            ensure_2d=True,
            allow_nd=True,
            dtype=None,
            reset=False,
        )


def _stand_in(model: StoredModel) -> Any:
    return _named(model.class_name, model)


def _named(class_name: str, model: StoredModel) -> Any:
    """Return a stand-in of this class: scikit-learn's messages name it."""
    made: Any = type(class_name, (_StandIn,), {})()
    made._stored = model
    for name in ("n_features_in_", "feature_names_in_", "classes_"):
        if name in model.attributes:
            setattr(made, name, model.attributes[name])
    return made


def _trees(model: StoredModel, forest: Forest) -> Source:
    stand_in = _stand_in(model)
    if model.rules["single"]:
        stand_in.tree_ = None
    return SklearnSource(stand_in, forest)


def _boosting(model: StoredModel, forest: Forest) -> Source:
    stand_in = _stand_in(model)
    tree = _named("DecisionTreeRegressor", model)
    vars(tree).pop("feature_names_in_", None)  # trees are trained on arrays
    one = np.array([[None]])
    one[0, 0] = tree
    stand_in.estimators_ = np.broadcast_to(one, model.rules["shape"])
    if not model.rules["classifier"]:
        vars(stand_in).pop("classes_", None)
    return GradientBoostingSource(stand_in, forest)


class _HistogramSource(EnsembleSource):
    """HistGradientBoosting* without categories: float64 rows."""

    _nan_is_fine = _infinity_is_fine = True

    def rows(self, X: Any, method: str) -> Any:
        """Run the estimator's own validation."""
        return validate_data(
            self.estimator,
            X,
            reset=False,
            dtype=[np.float64],
            ensure_all_finite=False,
        )

    def _raw(self, rows: Array) -> Any:
        raise SourceNeededError("The file has no scikit-learn model to ask for scores.")


def _bagging(model: StoredModel, forest: Forest) -> Source:
    stand_in = _stand_in(model)
    stand_in.estimators_ = []
    source = BaggingSource(stand_in, forest)
    source._nan_is_fine = model.rules["nan"]
    return source


class _Names:
    """What is asked of a Booster: the names and the number of its features."""

    def __init__(self, model: StoredModel) -> None:
        self.feature_names = model.rules.get("feature_names")
        self._n_features = model.rules.get("n_features", model.forest.n_features)
        # declined here, so that the forest's own names of categories are used
        self.pandas_categorical = any(model.forest.category_names) or None

    def num_features(self) -> int:
        return int(self._n_features)

    def get_booster(self) -> _Names:
        return self


class _LightGBMRows(LightGBMSource):
    """A wrapper of LightGBM: scikit-learn's checks, and its warning."""

    def __init__(self, model: StoredModel, forest: Forest) -> None:
        self._forest, self._stand_in = forest, _stand_in(model)
        self._stand_in.booster_ = _Names(model)
        if "predict_proba" in model.methods:
            self._stand_in.predict_proba = None
        super().__init__(self._stand_in, forest)

    def rows(self, X: Any, method: str) -> Any:
        """Check as the wrapper does, then take numbers."""
        if not is_pandas(X) and not is_table(X):
            X = validate_data(
                self._stand_in,
                X,
                reset=False,
                accept_sparse=True,
                ensure_all_finite=False,
                ensure_min_samples=1,
            )
        elif any(self._forest.category_names) or is_table(X):
            return self._taken(prepare_rows(self._forest, X), method)
        return self._taken(LightGBMBoosterSource.rows(_silent(self), X, method), method)


class _LightGBMBoosterRows(LightGBMBoosterSource):
    """A Booster of LightGBM; frames with categories by the names it knows."""

    def __init__(self, model: StoredModel, forest: Forest) -> None:
        self._forest = forest
        super().__init__(_Names(model), forest)

    def rows(self, X: Any, method: str) -> Any:
        """Take numbers, and the categories of frames."""
        if (is_pandas(X) and any(self._forest.category_names)) or is_table(X):
            return prepare_rows(self._forest, X)
        if isinstance(X, list):
            X = np.array(X)
        return super().rows(X, method)


def _silent(source: Any) -> Any:
    """Return the source as one that has warned already."""
    plain = object.__new__(LightGBMBoosterSource)
    vars(plain).update(vars(source))
    plain._warns = False
    return plain


_BY_KIND: dict[str, Callable[[StoredModel, Forest], Source]] = {
    "forest": lambda model, forest: ForestSource(forest),
    "xgboost": lambda model, forest: XGBoostSource(_Names(model), forest, False),
    "xgboost_dart": lambda model, forest: XGBoostSource(_Names(model), forest, True),
    "xgboost_booster": lambda model, forest: BoosterSource(_Names(model), forest),
    "lightgbm": _LightGBMRows,
    "lightgbm_booster": _LightGBMBoosterRows,
    "trees": _trees,
    "boosting": _boosting,
    "histogram": lambda model, forest: _HistogramSource(_stand_in(model), forest),
    "isolation": lambda model, forest: IsolationSource(_stand_in(model), forest),
    "bagging": _bagging,
    "adaboost": lambda model, forest: AdaBoostSource(_stand_in(model), forest),
}


# ------------------------------------------------------------ rules from a file


def check_rules(model: StoredModel) -> None:
    """Raise ValueError unless the rules are some that :func:`store` makes."""
    rules, forest = model.rules, model.forest
    wanted = _RULES.get(model.kind)
    if wanted is None or rules.keys() != {"left_out", *wanted}:
        raise ValueError("the kind or the names of the rules are not known")
    names, shape = rules.get("feature_names"), rules.get("shape", [forest.n_trees])
    good = [
        _are(str, rules["left_out"]),
        all(type(rules[flag]) is bool for flag in _FLAGS & rules.keys()),
        rules.get("n_features", forest.n_features) == forest.n_features,
        names is None or (_are(str, names) and len(names) == forest.n_features),
        _are(int, shape) and int(np.prod(shape, dtype=object)) == forest.n_trees,
        len(shape) == ("shape" in rules) + 1,
        type(rules.get("of_no_rows", {})) is dict,
        _labels_fit(model.attributes.get("classes_"), forest),
    ]
    if not all(good):
        raise ValueError("a rule is of the wrong type or size")
    for answer in rules.get("of_no_rows", {}).values():
        if not _is_of_no_rows(answer):
            raise ValueError("an answer to 0 rows has some")


def _is_of_no_rows(answer: Any) -> bool:
    """Tell whether that is a dtype of numbers and the shape of an empty array."""
    if type(answer) is not list or len(answer) != 2:
        return False
    code, shape = answer
    plain = type(code) is str and len(code) == 3 and code[1] in "fiu"
    return plain and _are(int, shape) and 0 in shape and min(shape) >= 0


def _labels_fit(labels: Any, forest: Forest) -> bool:
    """Tell whether there is a label for every position that is looked up in them."""
    if forest.source not in ("sklearn", "lightgbm") or labels is None:
        return True
    if not forest.classifies:
        return True
    if type(labels) is list:
        sizes = forest.output_sizes
        arrays = all(isinstance(one, np.ndarray) and one.ndim == 1 for one in labels)
        return len(sizes) > 1 and arrays and [*map(len, labels)] == [*sizes]
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        return False
    if forest.n_outputs > 1:
        return len(labels) == forest.n_outputs
    of_two = forest.transform.kind.startswith(("gb_", "hist_"))
    return len(labels) == 2 or (len(labels) == 1 and not of_two)


def _are(kind: type, values: Any) -> bool:
    return type(values) is list and all(type(value) is kind for value in values)


_FLAGS = {"classifier", "nan", "single"}

#: The rules of each kind, besides ``left_out``.
_RULES: dict[str, tuple[str, ...]] = {
    "forest": (),
    "xgboost": ("n_features", "feature_names", "of_no_rows"),
    "xgboost_dart": ("n_features", "feature_names", "of_no_rows"),
    "xgboost_booster": ("n_features", "feature_names", "of_no_rows"),
    "lightgbm": (),
    "lightgbm_booster": ("of_no_rows",),
    "trees": ("single", "nan"),
    "boosting": ("shape", "classifier", "nan"),
    "histogram": (),
    "isolation": (),
    "bagging": ("nan",),
    "adaboost": (),
}
