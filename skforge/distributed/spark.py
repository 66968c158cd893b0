"""Predictions of Spark data frames: an iterator pandas UDF, and a stage of pipelines.

::

    from skforge.distributed.spark import ForestTransformer, predict_udf

    score = predict_udf(fast, method="predict_raw")
    frame.withColumn("score", score("age", "income"))
    ForestTransformer(fast, inputCols=["age", "income"]).transform(frame)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.distributed._answer import Array
from skforge.distributed._artifact import Artifact, KeepEstimator
from skforge.distributed._job import Job, job
from skforge.exceptions import InvalidInputError, UnsupportedModelError

if TYPE_CHECKING:
    from skforge.distributed._spark_transformer import ForestTransformer
    from skforge.estimators import CompiledForest

__all__ = ["ForestTransformer", "predict_udf"]

#: Spark's types, by the kind and the size of NumPy's.
_TYPES = {
    "b1": "boolean",
    "i1": "tinyint",
    "i2": "smallint",
    "i4": "int",
    "i8": "bigint",
    "u1": "smallint",
    "u2": "int",
    "u4": "bigint",
    "f2": "float",
    "f4": "float",
    "f8": "double",
}


def __getattr__(name: str) -> object:
    if name == "ForestTransformer":  # its base classes are Spark's
        from skforge.distributed._spark_transformer import ForestTransformer

        return ForestTransformer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def predict_udf(
    model: CompiledForest | Artifact | str | os.PathLike[str],
    *,
    method: str = "predict",
    n_jobs: int | None = 1,
    keep_estimator: KeepEstimator = "auto",
) -> Callable[..., Any]:
    """Return a function of columns whose value is the model's prediction.

    It is an iterator pandas UDF: rows come as Arrow batches, and a Python worker loads
    the model once, however many batches and tasks it is given.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted model, a ``.skforge`` file of one, or what
        :func:`skforge.distributed.pack` made of either. It is broadcast.
    method : str, default="predict"
        The method of the model: ``predict``, ``predict_proba``, ``predict_log_proba``,
        ``predict_raw``, ``decision_function``, ``score_samples`` or ``apply``.
    n_jobs : int or None, default=1
        Threads of one task. Spark runs a task on each core of an executor, so 1 uses
        them all; with ``spark.task.cpus=k``, give k.
    keep_estimator : bool or "auto", default="auto"
        See :func:`skforge.distributed.pack`.

    Returns
    -------
    callable
        ``udf(*columns) -> Column``. The columns, names or expressions, are the
        features in the model's order; none means those of the names the model was
        trained with. One column of arrays stands for all features
        (``vector_to_array`` of ``pyspark.ml.functions`` makes one of vectors). A null
        is a missing value, and text a category. The value is a number, boolean or
        text of the model's own type, or an array of them.

    Raises
    ------
    InvalidInputError
        If the model lacks the method.
    UnsupportedModelError
        If Spark has no type for what it answers.
    RuntimeError
        If there is no Spark session.

    Notes
    -----
    Workers need skforge, and Python packages of the same versions as the driver. A
    task lost with its worker is run again by Spark; a row is never counted twice,
    since the UDF only maps.

    Examples
    --------
    >>> udf = predict_udf(fast, method="predict_proba")        # doctest: +SKIP
    >>> frame.select("id", udf("age", "income").alias("p"))    # doctest: +SKIP
    """
    return udf_of(job(model, method, n_jobs, keep_estimator))


def udf_of(work: Job) -> Callable[..., Any]:
    """Return the function of columns that does a job."""
    from pyspark.sql import functions as F

    sent = _broadcast(work)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for frame in batches:
            yield _series(sent.value, frame)

    predicted = _pandas_udf(run, spark_type(work))
    names, width = work.feature_names, work.n_features

    def udf(*columns: Any) -> Any:
        if not columns:
            if names is None:
                raise InvalidInputError(
                    "The model was trained without names; give the columns that are "
                    f"its {width} features, in its order."
                )
            columns = tuple(F.col(f"`{name.replace('`', '``')}`") for name in names)
        if len(columns) not in (1, width):
            raise InvalidInputError(
                f"The model was trained on {width} features. Got {len(columns)} "
                "columns instead; give one for each feature, or one of arrays."
            )
        given = [F.col(c) if isinstance(c, str) else c for c in columns]
        # under names of our own: expressions have odd ones, or the same one
        return predicted(F.struct(*(c.alias(f"f{i}") for i, c in enumerate(given))))

    return udf


class _Here:
    """A broadcast where there is none: the value goes with the function."""

    def __init__(self, value: Job) -> None:
        self.value = value


def _broadcast(work: Job) -> Any:
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        return _Here(work)  # Spark Connect has no broadcasts
    session = SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "There is no active Spark session; make one before the UDF: "
            "SparkSession.builder.getOrCreate()."
        )
    return session.sparkContext.broadcast(work)


def _pandas_udf(run: Callable[..., Any], returned: str) -> Any:
    from pandas import DataFrame, Series
    from pyspark.sql.functions import pandas_udf

    # Spark tells the kind of a UDF by its hints, and wants them evaluated.
    run.__annotations__ = {"batches": Iterator[DataFrame], "return": Iterator[Series]}
    return pandas_udf(run, returnType=returned)


def spark_type(work: Job) -> str:
    """Return the type of a job's answer, as Spark writes it."""
    dtype, width = work.answer.dtype, work.answer.width
    name = "string" if dtype.kind in "UO" else _TYPES.get(dtype.str.lstrip("<>|="))
    if name is None:
        raise UnsupportedModelError(
            f"{work.method} answers in {dtype}, for which Spark has no type."
        )
    return name if width is None else f"array<{name}>"


def _series(work: Job, frame: Any) -> Any:
    """Return one batch's answer as a series Arrow takes without a copy."""
    from pandas import Series

    found = _answer(work, frame)
    if work.answer.width is None:
        return Series(found)
    import pandas as pd
    import pyarrow as pa

    values = pa.array(found.ravel())
    ends = np.arange(0, found.size + 1, work.answer.width or 1, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), values)
    return Series(pd.arrays.ArrowExtensionArray(lists))


def _answer(work: Job, frame: Any) -> Array:
    if frame.shape[1] == 1 and len(frame):
        first = next((v for v in frame.iloc[:, 0] if v is not None), None)
        if isinstance(first, np.ndarray):
            return work.of_rows(_rows_of_arrays(work, frame.iloc[:, 0]))
    work.check_width(frame.shape[1])
    return work.of_frame(frame)


def _rows_of_arrays(work: Job, column: Any) -> Array:
    """Return a column of arrays, one a row, as one array."""
    arrays = column.to_list()
    for array in arrays:
        if array is None or len(array) != work.n_features:
            wrong = "null" if array is None else f"an array of {len(array)} values"
            raise InvalidInputError(
                f"The model was trained on {work.n_features} features, but the "
                f"column of arrays holds {wrong}."
            )
    rows = np.concatenate(arrays).reshape(len(arrays), work.n_features)
    return rows.astype(np.float64) if rows.dtype.kind == "O" else rows
