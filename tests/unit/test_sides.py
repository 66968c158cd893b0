"""Which side a value goes: one rule for all tests, and one for missing values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler.binning.rules import ReadingRules, set_numbers
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Buffer, Vec
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import THRESHOLDS, missing_right
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates
from tests.exactness.forests import forest
from tests.lir_tools import buffer_of, run
from tests.strategies_forest import edge_rows

#: Forests that together have each kind of test and of missing value.
KINDS = ("scalar", "categories", "never missing", "zero missing", "equal", "members")


def normalized(name: str) -> tuple[Forest, str]:
    """Return a forest; some of its tests are for equality, or of whole numbers."""
    changed = {"equal": "any missing", "members": "categories"}
    normal, comparison = normalize_predicates.run(forest(changed.get(name, name)))
    tests = normal.comparison.copy()
    if name == "equal":
        tests[::2] = Comparison.EQ
    if name == "members":
        tests[tests == Comparison.IN] = Comparison.MEMBER
    return replace(normal, comparison=tests), comparison


def sides(forest: Forest, comparison: str, p: int, x: np.ndarray) -> np.ndarray:
    """Return where values go right at a predicate, by LIR."""
    data: dict[str, np.ndarray] = {"x": x, "right": np.zeros(len(x), np.uint8)}

    def model(name: str, array: np.ndarray) -> Buffer:
        data[name] = array
        return buffer_of(array, name)

    b = Builder()
    rules = ReadingRules(forest, comparison, model)
    kind, test = Missing(int(forest.missing[p])), int(forest.comparison[p])
    with b:
        values = model("x", x)
        right, lanes = model("right", data["right"]), 4
        with b.loop(0, len(x), lanes) as i:
            raw = values[i, Vec(values.element, lanes)]
            value = rules.compared(raw, [kind], lambda kind: None)
            number = b.const(float(forest.threshold[p]), values.element)
            if test >= Comparison.IN:
                number = b.const(int(set_numbers(forest)[p]))
            which = test if test >= Comparison.EQ else THRESHOLDS
            side = rules.goes_right(value, number, which)
            gone = rules.missing(raw, value, [kind], lambda kind: None)
            to = bool(missing_right(forest)[p])
            side = side | gone if to else side & ~gone
            one, zero = (b.const(k, Vec(right.element, lanes)) for k in (1, 0))
            right[i] = b.select(side, one, zero)
    run(b, **data)
    return data["right"] != 0


@pytest.mark.parametrize("name", KINDS)
def test_sides_are_those_of_the_reference(name: str) -> None:
    normal, comparison = normalized(name)
    X = edge_rows(normal, 64, seed=3)
    for p in range(0, normal.n_predicates, 3):
        x = np.ascontiguousarray(X[:, normal.feature[p]])
        x[:4] = np.nan, 0, normal.threshold[p], 1.5
        left = evaluate_predicates(normal, np.full(len(x), p), x)
        np.testing.assert_array_equal(sides(normal, comparison, p, x), ~left)


def test_the_forests_have_every_kind() -> None:
    normal = [normalized(name)[0] for name in KINDS]
    tests = {Comparison(int(c)).name for made in normal for c in made.comparison}
    assert tests == {"LT", "LE", "EQ", "IN", "MEMBER"}
    assert {int(k) for made in normal for k in made.missing} == {*Missing}
