"""Leaves found by the entries of sparse rows are those of the same rows made dense.

Predictions of a faulty walk are right, as it is compared with drawn rows and then left.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from skforge.engine.sparse import SparseWalk
from skforge.forest.reference import reference_leaves, reference_raw
from tests.exactness.forests import MAKERS, forest, rows_for

NAMES = [
    name
    for name in MAKERS
    if name != "wide records" and SparseWalk.supports(forest(name))
]
#: LightGBM alone takes numbers near zero for missing, and absent ones for zero.
CASES = [(name, fill) for name in NAMES for fill in (0.0, np.nan)]
CASES.remove(("zero missing", np.nan))


@pytest.mark.parametrize(("name", "fill"), CASES)
def test_entries_lead_to_the_leaves_of_dense_rows(name: str, fill: float) -> None:
    made = forest(name)
    walk, bits = SparseWalk(made, fill), made.input_dtype.str.replace("f", "u")
    absent = np.array(fill, made.input_dtype).view(bits)
    random = np.random.default_rng(0)
    for density, n in ((0.0, 1), (0.1, 65), (0.5, 200), (1.0, 64)):
        rows = rows_for(name, n).copy()
        rows[random.random(rows.shape) >= density] = fill
        at, columns = np.nonzero(rows.view(bits) != absent)
        starts = np.searchsorted(at, np.arange(n + 1))
        entries = csr_array((rows[at, columns], columns, starts), rows.shape)
        wanted = reference_raw(made, rows)
        for threads in (1, 2):
            scores = walk(entries, threads, leaves=False)
            assert scores is not None
            assert scores.tobytes() == wanted.tobytes(), (density, threads)
        leaves = made.source_node[reference_leaves(made, rows)]
        np.testing.assert_array_equal(walk(entries, 1, leaves=True), leaves)
