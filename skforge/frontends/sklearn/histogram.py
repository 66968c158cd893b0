"""scikit-learn: HistGradientBoostingRegressor and HistGradientBoostingClassifier.

X is float64 and compared with float64 thresholds by ``<=``; sums are float64, start
from the baseline and add one leaf of each tree, iteration by iteration.

The model ordinally encodes categorical columns and moves them to the front before its
trees see them. Here trees read X itself: a split's set of codes becomes a set of the
category values. Values not seen in training, including NaN, go where missing values go.
Categories that are no small whole numbers keep their codes: rows then hold indices into
``category_names``, which are texts or numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Bools
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES, OutputSpec
from skforge.forest.predicates import deduplicate_predicates
from skforge.forest.validation import damaged
from skforge.frontends import arrays
from skforge.frontends.arrays import Sets
from skforge.frontends.base import Frontend, detects, is_a, register
from skforge.frontends.sklearn import common

_MODULE = "sklearn.ensemble._hist_gradient_boosting.gradient_boosting."

#: Outputs by the link's class, for classifiers and for regressors.
_CLASSIFIER_LINKS = {
    "LogitLink": OutputSpec(
        "expit", probabilities="values", labels="above_zero", decision="scores"
    ),
    "MultinomialLogit": OutputSpec(
        "softmax_by_columns", probabilities="values", decision="scores"
    ),
}
_REGRESSOR_LINKS = {"IdentityLink": SCORES, "LogLink": OutputSpec("numpy_exp")}

#: Categories are bits of a set; larger numbers would make the sets too large.
_LARGEST_CATEGORY = 65535


class HistogramColumn(NamedTuple):
    """A column of X, which the model's trees see under another number."""

    feature: int
    #: What rows hold for each code: the category itself if all are small whole numbers,
    #: and otherwise its code. None if the column has no categories.
    categories: tuple[int, ...] | None = None
    #: The names of the categories if rows hold codes: numbers or texts.
    names: tuple[str | float, ...] = ()
    #: The categories themselves, and the encoder's dtype of them if it compares them as
    #: Python's objects: numbers of dtype object, intervals, dates.
    labels: tuple[Any, ...] = ()
    objects: Any = None


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    common.check_model(model, "_predictors", iteration_range)
    classifier = is_a(model, f"{_MODULE}HistGradientBoostingClassifier")
    baseline = np.asarray(model._baseline_prediction)
    if baseline.dtype != np.float64:
        raise UnsupportedModelError(
            f"{type(model).__name__} sums in {baseline.dtype}, but only float64 sums "
            "are supported."
        )
    n_outputs = int(model.n_trees_per_iteration_)
    columns = model_columns(model)
    trees = [tree for iteration in model._predictors for tree in iteration]
    named = any(column.names for column in columns)
    names = {column.feature: column.names for column in columns}
    return Forest(
        **_tree_arrays(trees, columns),
        tree_output=np.tile(np.arange(n_outputs), len(model._predictors)),
        n_features=len(columns),
        base=np.zeros(n_outputs) + baseline.reshape(-1),
        outputs=_outputs(model, classifier),
        task=common.class_task(len(model.classes_)) if classifier else "regression",
        source="sklearn",
        feature_names=common.feature_names(model),
        category_names=tuple(names[i] for i in sorted(names)) if named else (),
    )


def _outputs(model: Any, classifier: bool) -> OutputSpec:
    link = type(model._loss.link).__name__
    known = _CLASSIFIER_LINKS if classifier else _REGRESSOR_LINKS
    ours = type(model._loss).__module__.startswith("sklearn.")
    if link not in known or not ours:
        raise UnsupportedModelError(
            f"{type(model).__name__} has the loss {type(model._loss).__name__} with "
            f"the link {link}, which is not supported; the supported links are "
            f"{', '.join(known)}."
        )
    return known[link]


def model_columns(model: Any) -> tuple[HistogramColumn, ...]:
    mask = getattr(model, "is_categorical_", None)
    if mask is None:
        return tuple(HistogramColumn(i) for i in range(int(model.n_features_in_)))
    preprocessor = getattr(model, "_preprocessor", None)
    if preprocessor is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has categories and was fitted by scikit-learn "
            "before 1.4, which encoded them differently; fit it again."
        )
    known = preprocessor.named_transformers_["encoder"].categories_
    pairs = zip(np.flatnonzero(mask).tolist(), known, strict=True)
    coded = [_column(feature, categories) for feature, categories in pairs]
    plain = map(HistogramColumn, np.flatnonzero(~np.asarray(mask)).tolist())
    return (*coded, *plain)


def _column(feature: int, known: Any) -> HistogramColumn:
    values = np.asarray(known)
    listed = values.tolist()
    if listed and listed[-1] != listed[-1]:
        listed.pop()  # NaN is encoded as itself
    labels, kinds, dates = (
        tuple(listed),
        {*map(type, listed)},
        values.dtype.kind in "mM",
    )
    codes = tuple(range(len(labels)))
    if not dates and kinds <= {str}:
        return HistogramColumn(feature, codes, labels, labels)
    objects = values.dtype if dates or values.dtype == np.object_ else None
    if dates or not kinds <= {bool, int, float}:
        texts = tuple(map(str, labels))
        texts = texts if len({*texts}) == len(texts) else tuple(map(repr, labels))
        return HistogramColumn(feature, codes, texts, labels, values.dtype)
    if all(0 <= x <= _LARGEST_CATEGORY and x % 1 == 0 for x in labels):
        whole = tuple(map(int, labels))
        return HistogramColumn(feature, whole, (), labels, objects)
    if values.dtype == np.uint64 and 2**53 <= labels[-1] < 2**63:
        raise UnsupportedModelError(
            f"The categories of column {feature} are whole numbers of the dtype uint64 "
            f"up to {labels[-1]}, and skforge keeps no dtype with them; fit the model "
            "with int64 there."
        )
    names = tuple(map(float if float in kinds else int, labels))
    return HistogramColumn(feature, codes, names, labels, objects)


def _tree_arrays(
    trees: list[Any], columns: tuple[HistogramColumn, ...]
) -> dict[str, Any]:
    sizes = np.array([len(tree.nodes) for tree in trees], dtype=np.int64)
    offset = arrays.offsets(sizes)
    start = arrays.starts(offset)
    nodes = np.concatenate([tree.nodes for tree in trees])
    tree_of = np.repeat(np.arange(len(trees)), sizes)
    inner = nodes["is_leaf"] == 0
    names = "left", "right", "feature_idx"
    left, right, seen = (nodes[name].astype(np.int64) for name in names)
    for name, child in (("left", left), ("right", right)):
        arrays.check_children(name, child, inner, offset, "fit it again")
    bad, limits = (seen < 0) | (seen >= len(columns)), f"outside 0..{len(columns) - 1}"
    of_nodes = "feature_idx", seen, inner & bad
    arrays.check_nodes(*of_nodes, lambda _: limits, offset, "fit it again")

    tests = np.flatnonzero(inner)
    feature_of = np.array([column.feature for column in columns], np.int64)
    missing_left = nodes["missing_go_to_left"][tests] != 0
    comparison = np.full(len(tests), Comparison.LE, np.uint8)
    threshold = nodes["num_threshold"][tests].astype(np.float64)
    sets: Sets = {}
    for test in np.flatnonzero(nodes["is_categorical"][tests]):
        node = tests[test]
        tree = trees[tree_of[node]]
        goes_left = _code_bits(tree, int(nodes["bitset_idx"][node]), int(tree_of[node]))
        categories = columns[int(seen[node])].categories
        if categories is None:
            damaged(
                f"Node {node - start[node]} of tree {tree_of[node]} splits categories "
                "of a feature that has none",
                "fit it again",
            )
        # the set is the side that unknown values do not take, so that unknown values,
        # which are in no set, go the same way as missing ones
        wanted = not missing_left[test]
        chosen = [v for code, v in enumerate(categories) if goes_left[code] == wanted]
        sets[int(test)] = arrays.category_words(chosen)
        comparison[test] = Comparison.MEMBER
        threshold[test] = 0.0
    in_set = comparison == Comparison.MEMBER
    swap = np.zeros(len(nodes), np.bool_)
    swap[tests] = in_set & missing_left
    features, side = feature_of[seen[tests]], missing_left & ~in_set
    distinct = deduplicate_predicates(
        features, comparison, threshold, Missing.NAN, side, sets
    )
    left, right = np.where(swap, (right, left), (left, right)) + start
    value, cover = nodes["value"][~inner][:, np.newaxis], nodes["count"].astype(float)
    children = offset, inner, left, right
    return arrays.forest_arrays(*children, distinct, value, cover=cover)


def _code_bits(tree: Any, row: int, number: int) -> Bools:
    bitsets = np.asarray(tree.raw_left_cat_bitsets)
    if not 0 <= row < len(bitsets):
        damaged(f"Tree {number} has no category set {row}", "fit it again")
    words = np.ascontiguousarray(bitsets[row], dtype="<u4")
    return np.asarray(np.unpackbits(words.view(np.uint8), bitorder="little") != 0)


_KIND, refuse = detects(f"{_MODULE}BaseHistGradientBoosting"), common.refuse_overrides
register(Frontend("sklearn HistGradientBoosting", (), _KIND, load, refuse=refuse))
