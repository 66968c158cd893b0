"""Numbers of columns of polars and pyarrow, and which of them are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from skforge.rows.frames import kind_of, numbers_in

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

DTYPES = ("int8", "uint16", "int32", "int64", "float32", "float64", "bool")


def column(library: str, values: list[Any], dtype: str) -> Any:
    if dtype == "bool":
        values = [None if value is None else bool(value) for value in values]
    if library == "polars":
        name = dtype.title().replace("Uint", "UInt").replace("Bool", "Boolean")
        return pl.Series(values, dtype=getattr(pl, name))
    kind = pa.bool_() if dtype == "bool" else getattr(pa, dtype)()
    if library == "chunks":
        return pa.chunked_array([values[:1], values[1:]], kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["polars", "array", "chunks"])
def test_numbers_without_gaps_are_of_the_columns_dtype(library, dtype):
    values, gaps = numbers_in(column(library, [1, 0, 1], dtype))
    assert (values.dtype, gaps) == (np.dtype(dtype), None)
    assert values.tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["polars", "array", "chunks"])
def test_gaps_are_told_and_are_nan_among_floats(library: str, dtype: str) -> None:
    values, gaps = numbers_in(column(library, [1, None, 0], dtype))
    assert gaps.tolist() == [False, True, False]
    assert values.dtype == dtype
    assert values[[0, 2]].tolist() == [1, 0]
    assert np.isnan(values[1]) == dtype.startswith("float")


def test_texts_are_no_numbers() -> None:
    texts = ["a", None]
    for given in (pl.Series(texts), pa.array(texts), pa.chunked_array([texts])):
        assert numbers_in(given) is None


def test_the_kinds_of_classes() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.0]})
    table = pa.table({"a": [1.0]})
    kinds = {
        "pandas": frame,
        "polars": pl.DataFrame({"a": [1.0]}),
        "pyarrow": table,
        "batch": table.to_batches()[0],
        "csr": scipy.sparse.csr_matrix([[1.0]]),
    }
    assert {kind: kind_of(X) for kind, X in kinds.items()} == {k: k for k in kinds}
    for X in (frame["a"], scipy.sparse.csc_matrix([[1.0]]), np.ones((1, 1)), [[1.0]]):
        assert kind_of(X) == ""
