"""Regressors that scikit-learn-intelex trained: oneDAL's trees and its sums.

oneDAL compares rows of float64 and of float32 with float64 thresholds by ``<=``. It
sums leaves in the dtype of the rows, in blocks of trees that fit the processor's cache,
and multiplies each block's sum by ``1 / n_trees`` as it adds it, rounding once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.forest.reference import draw_rows, reference_leaves
from skforge.frontends.base import Frontend, is_a, register
from skforge.frontends.checks import IntRange, is_onedal, refuse_override
from skforge.frontends.sklearn import common
from skforge.outputs.sklearn import scaled_blocks

REGRESSOR = "sklearnex.ensemble._forest.ForestRegressor"
_FOREST = "sklearn.ensemble._forest.BaseForest"
_INSTEAD = (
    "Call sklearnex.unpatch_sklearn(), import scikit-learn's class again, and fit "
    "that one."
)
#: Rows by which blocks are found: other ones round many of their answers otherwise.
_PROBES = 256


def refuse(model: Any) -> None:
    if not is_a(model, REGRESSOR):
        raise UnsupportedModelError(
            f"This {type(model).__name__} is one of scikit-learn-intelex (sklearnex), "
            "whose trees show the class of a leaf and not its probabilities. "
            f"{_INSTEAD}"
        )
    refuse_override(model, "sklearnex")


def load(model: Any, rounds: IntRange | None = None) -> Forest:
    kind = type(model).__name__
    if rounds is not None:
        raise UnsupportedModelError(f"{kind} has no boosting rounds to choose from.")
    refuse(model)
    return forest_of(model, _trees_in_block(model), np.float64)


def forest_of(model: Any, block: int, dtype: Any) -> Forest:
    """Return the forest for rows of a dtype, whose outputs are blocks of trees."""
    trees = [estimator.tree_ for estimator in model.estimators_]
    share = dtype(1) / dtype(len(trees))
    at = np.arange(len(trees)) // block
    function: Any = "scaled_blocks" if at[-1] else "scaled"
    return common.forest_of(
        model,
        trees,
        [tree.value[:, 0].astype(dtype) for tree in trees],
        dtype=dtype,
        missing=False,
        tree_output=at.astype(np.int32),
        base=np.zeros(at[-1] + 1, dtype),
        outputs=OutputSpec(function, parameter=float(share)),
        task="regression",
    )


def _trees_in_block(model: Any) -> int:
    """Return how many trees oneDAL sums on this processor before it goes on."""
    n_trees = len(model.estimators_)
    forest = forest_of(model, n_trees, np.float64)
    rows = draw_rows(forest, _PROBES, 0)
    values = forest.leaf_value[forest.leaf[reference_leaves(forest, rows).T], 0]
    wanted = _predict(model, rows)
    for block in range(n_trees, 0, -1):
        sums = [
            np.add.accumulate(values[at : at + block])[-1]
            for at in range(0, n_trees, block)
        ]
        if np.array_equal(scaled_blocks(np.array(sums).T, forest.outputs, np), wanted):
            return block
    raise UnsupportedModelError(
        f"This {type(model).__name__} of scikit-learn-intelex (sklearnex) sums its "
        f"trees in an order that skforge does not know. {_INSTEAD}"
    )


def _predict(model: Any, rows: Any) -> Any:
    with no_warnings():  # feature names: the rows have none
        return model.predict(rows)


def _trained(model: Any) -> bool:
    return is_a(model, _FOREST) and is_onedal(model)


register(Frontend("sklearn (oneDAL)", (), _trained, load, refuse=refuse))
