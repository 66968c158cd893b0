"""Predict Dask arrays and data frames lazily, block by block.

::

    from skforge.distributed.dask import predict

    probability = predict(fast, X, method="predict_proba")   # lazy, as X is
    frame["score"] = predict(fast, frame, method="predict_raw")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge._docs import documented
from skforge.distributed._artifact import Job, KeepEstimator, Packable, job
from skforge.exceptions import InvalidInputError, with_article

__all__ = ["predict"]


@documented(job)
def predict(
    model: Packable,
    X: Any,
    *,
    method: str = "predict",
    columns: Sequence[Any] | None = None,
    n_jobs: int | None = 1,
    keep_estimator: KeepEstimator = "auto",
) -> Any:
    """Return a lazy Dask collection of predictions.

    Parameters
    ----------
    X : dask.array.Array of shape (n_rows, n_features), or dask.dataframe.DataFrame
        Rows. Row counts may be unknown (``nan``), blocks may be empty or sparse
        matrices, and columns may be split into several chunks.
    columns : sequence, default=None
        The feature columns of a data frame, in the model's order. None uses the feature
        names the model was trained with, or all columns if it has none.
    n_jobs : int or None, default=1
        Threads of one task. Dask runs a task on each thread of a worker, so 1 uses them
        all; more only helps single-threaded workers.

    Returns
    -------
    dask.array.Array of shape (n_rows,) or (n_rows, n_values)
        For an array: the same row chunks, with the model's own dtype.
    dask.dataframe.Series or DataFrame
        For a data frame: the same index and divisions, with names such as
        ``prediction`` or ``probability_<class>``.

    Raises
    ------
    InvalidInputError
        If the model lacks the method, the columns are not its features, or ``X`` is not
        a Dask array or data frame.

    Notes
    -----
    The model is one node of the graph that workers pass to each other; each process
    loads it once. If a worker dies, another predicts its lost blocks again.

    Examples
    --------
    >>> import pytest; da = pytest.importorskip("dask.array")
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skforge import CompiledForest
    >>> from skforge.distributed.dask import predict
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> fast = CompiledForest(tree).fit([[0.0]])
    >>> y = predict(fast, da.from_array([[1.0], [0.0], [1.0]], chunks=2))
    >>> y.chunks, y.dtype
    (((2, 1),), dtype('float64'))
    >>> y.compute()
    array([4., 3., 4.])
    """
    kind = {base.__module__.partition(".")[0] for base in type(X).__mro__}
    if "dask" not in kind or not hasattr(X, "dask"):
        raise InvalidInputError(
            "X must be a Dask array or data frame. Got "
            f"{type(X).__module__}.{type(X).__name__} instead; for data in memory, "
            f"call model.{method}(X)."
        )
    work = job(model, method, n_jobs, keep_estimator)
    if hasattr(X, "map_blocks"):
        return _of_array(work, X, columns)
    if hasattr(X, "map_partitions") and X.ndim == 2:
        return _of_frame(work, X, columns)
    raise InvalidInputError(
        "X must be a Dask array or data frame. Got "
        f"{with_article(type(X).__name__)} of Dask instead, which has no columns."
    )


def _sent(work: Job) -> Any:
    from dask.base import tokenize
    from dask.delayed import delayed

    return delayed(work, name=f"skforge-{tokenize(work)}", traverse=False)


def _of_array(work: Job, X: Any, columns: Sequence[Any] | None) -> Any:
    if columns is not None:
        raise InvalidInputError(
            "columns selects columns of a data frame by name, but X is an array; pass "
            "X[:, indices] instead."
        )
    if X.ndim != 2:
        raise InvalidInputError(
            f"X must be two-dimensional, with one row per sample. Got {X.ndim} "
            "dimension(s) instead."
        )
    if not np.isnan(X.shape[1]):
        work.check_width(X.shape[1])
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    answer = work.answer
    shape: dict[str, Any] = {"drop_axis": 1}
    if answer.width is not None:
        shape = {"chunks": (X.chunks[0], (answer.width,))}
    return X.map_blocks(
        lambda rows, work: work.of_rows(rows),
        _sent(work),
        dtype=answer.dtype,
        meta=answer.empty(),
        name=None,
        token=f"skforge-{work.method}",
        **shape,
    )


def _of_frame(work: Job, X: Any, columns: Sequence[Any] | None) -> Any:
    taken = X[work.columns_of(X.columns, columns)]
    meta = _part(taken._meta, work)
    return taken.map_partitions(
        _part, _sent(work), meta=meta, token=f"skforge-{work.method}"
    )


def _part(frame: Any, work: Job) -> Any:
    from pandas import DataFrame, Series

    values, names = work.of_frame(frame, typed=True), work.answer.names
    if work.answer.width is None:
        return Series(values, index=frame.index, name=names[0])
    return DataFrame(values, index=frame.index, columns=list(names))
