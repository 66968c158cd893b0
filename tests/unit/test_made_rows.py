"""Rows made for comparisons: how many there are, and which values are among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from skforge.frontends import load_forest
from skforge.prediction.made_rows import Known, known_columns, made_rows


def made(width: int, form: Any = np.asarray) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(60, width))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, X @ np.ones(width))
    forest = load_forest(tree)
    return forest, made_rows(form(X), known_columns(forest, {}), None)


@pytest.mark.parametrize(
    ("width", "ordinary"), [(1, 192), (10, 192), (11, 186), (85, 24), (200, 24)]
)
def test_few_columns_get_more_rows_than_many(width: int, ordinary: int) -> None:
    _, (one,) = made(width)
    gaps, infinities = ordinary + 3, ordinary + 5  # after zeros and a large number
    assert one.rows.shape == (infinities + 3, width)
    assert one.ends == (gaps, infinities, infinities + 3)
    ordinary_rows, odd = np.split(one.rows, [ordinary])
    assert np.isfinite(ordinary_rows).all()
    assert (odd[:2] == 0).all()
    assert np.signbit(odd[1]).any() and not np.signbit(odd[0]).any()
    assert np.isnan(odd[4]).all()
    assert np.isinf(odd[5:7]).any() or width == 1
    assert (np.abs(odd[7]) > 1e300).any()


def test_parts_of_lists_are_apart() -> None:
    _, parts = made(2, np.ndarray.tolist)
    assert [len(part.rows) for part in parts] == [195, 2, 3]
    assert [part.ends for part in parts] == [(195,), (2,), (3,)]
    assert all(type(value) is float for row in parts[0].rows for value in row)


def test_nothing_is_made_for_forms_that_are_not_known() -> None:
    forest, _ = made(2)
    assert made_rows(object(), known_columns(forest, {}), None) == []


def test_dictionaries_of_arrow_list_names_in_no_reader_s_order() -> None:
    # a set's order, which varies by process, let a planted fault pass at times
    pa = pytest.importorskip("pyarrow")
    towns = ("bern", "lima", "oslo", "riga", "rome")
    table = pa.table({"town": pa.array(["oslo", None]).dictionary_encode()})
    batches = made_rows(table, {0: Known(labels=towns)}, None)
    ordinary, new = (b.rows["town"].combine_chunks().dictionary for b in batches)
    assert ordinary.to_pylist() == [*towns[::-1]]
    assert len(new) == 2  # one that training had, and one that it had not
