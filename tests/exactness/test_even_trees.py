"""Even trees of 9 to 16 levels: loaded leaves give the source's own bits."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.cost.estimate import plan_of
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits, levels, raw_of
from tests.exactness.forests import forest_of, tree
from tests.exactness.sliced import even, evened, grown, rows_of, sliced

DOUBLE = {"dtype": "float64", "sums": "float64"}


def mixed() -> Forest:
    """Even trees beside a folded tree, a list and a leaf."""
    random = np.random.default_rng(2)
    shapes = [("full", 10), ("full", 6), ("full", 0), ("full", 9)]
    trees = [tree(*shape, random) for shape in shapes]
    return evened(forest_of([*trees, grown(100, random)], sums="float64"), [0, 3])


FORESTS = {
    "9 and 10": lambda: even(9, 10, 10, 3, n_features=20, sums="float64"),
    "13": lambda: even(13, 8, **DOUBLE),
    "16": lambda: even(16, n_features=30, sums="float64"),
    "3 outputs": lambda: even(9, 11, n_outputs=3, vector=True, sums="float64"),
    "19 outputs": lambda: even(9, n_outputs=19, vector=True),
    "classes": lambda: even(9, 10, 9, 10, n_outputs=3),
    "mixed": mixed,
}


@pytest.mark.parametrize("name", FORESTS)
def test_scores(name: str) -> None:
    made = FORESTS[name]()
    rows = rows_of(made, 700)
    raw = reference_raw(made, rows)
    at = list(FORESTS).index(name)
    targets = [*levels().values()]
    for target, block in (("cpu", 512), (targets[at % len(targets)], 64)):
        module = compile_forest(made, sliced(block), target)
        for n in (1, 9, 64, 65, 700):
            found = raw_of(module, rows[:n], n_jobs=1 + n % 2)
            assert_same_bits(found, raw[:n], (name, target, n))


def test_defaults_take_bits_from_a_few_rows_on() -> None:
    made, uneven = even(*[10] * 50), forest_of([tree("full", 10, np.random)])
    for target in (Target.x86_64("v3"), Target.x86_64("v4")):
        table = default_schedules(made, target)
        kinds = [plan_of(schedule).kind for schedule in table.values()]
        assert kinds[0] != "bitsliced" and kinds[-1] == "bitsliced"
        assert [first for first, _ in table][kinds.index("bitsliced")] <= 32
        other = default_schedules(uneven, target).values()
        assert "bitsliced" not in [plan_of(schedule).kind for schedule in other]
