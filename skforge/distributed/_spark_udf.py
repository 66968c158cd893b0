"""The pandas UDF that predicts batches of Spark rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from skforge.distributed._artifact import Job
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.prediction.answers import Array

#: Spark types by the kind and item size of NumPy dtypes.
_TYPES = {
    "b1": "boolean", "i1": "tinyint", "i2": "smallint", "i4": "int", "i8": "bigint",
    "u1": "smallint", "u2": "int", "u4": "bigint", "f2": "float", "f4": "float",
    "f8": "double",
}  # fmt: skip


def udf_of(work: Job) -> Callable[..., Any]:
    from pandas import DataFrame, Series
    from pyspark.sql import functions as F

    sent = _broadcast(work)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for frame in batches:
            yield _series(sent.value, frame)

    # Spark infers the kind of a UDF from its evaluated type hints.
    run.__annotations__ = {"batches": Iterator[DataFrame], "return": Iterator[Series]}
    predicted = F.pandas_udf(run, returnType=spark_type(work))
    names, width = work.rows.names, work.rows.width

    def udf(*columns: Any) -> Any:
        if not columns:
            if names is None:
                raise InvalidInputError(
                    "The model was trained without feature names; pass the columns of "
                    f"its {width} features, in the order of training."
                )
            columns = tuple(F.col(quoted(name)) for name in names)
        if len(columns) not in (1, width):
            raise InvalidInputError(
                f"The model was trained on {width} features. Got {len(columns)} "
                "columns instead; give one for each feature, or one of arrays."
            )
        features = [F.col(c) if isinstance(c, str) else c for c in columns]
        # rename: expressions may have odd or equal names
        return predicted(F.struct(*(c.alias(f"f{i}") for i, c in enumerate(features))))

    return udf


def quoted(name: str) -> str:
    """Return the name of a column as Spark's expressions spell it."""
    return f"`{name.replace('`', '``')}`"


def _broadcast(work: Job) -> Any:
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        # Spark Connect has no broadcasts: the job is pickled with the function
        return SimpleNamespace(value=work)
    session = SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "There is no active Spark session; create one before the UDF with "
            "SparkSession.builder.getOrCreate()."
        )
    return session.sparkContext.broadcast(work)


def spark_type(work: Job) -> str:
    dtype, width = work.answer.dtype, work.answer.width
    name = "string" if dtype.kind in "UO" else _TYPES.get(dtype.str.lstrip("<>|="))
    if name is None:
        raise UnsupportedModelError(
            f"{work.method} returns {dtype}, for which Spark has no type."
        )
    return name if width is None else f"array<{name}>"


def _series(work: Job, frame: Any) -> Any:
    from pandas import Series

    answer = _answer(work, frame)
    if work.answer.width is None:
        return Series(answer)
    import pandas as pd
    import pyarrow as pa

    values = pa.array(answer.ravel())
    ends = np.arange(0, answer.size + 1, work.answer.width or 1, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), values)
    return Series(pd.arrays.ArrowExtensionArray(lists))


def _answer(work: Job, frame: Any) -> Array:
    if not len(frame):
        return work.answer.empty()
    if frame.shape[1] == 1:
        first = next((v for v in frame.iloc[:, 0] if v is not None), None)
        if isinstance(first, np.ndarray):
            return work.of_rows(_rows_of_arrays(work, frame.iloc[:, 0]))
    work.check_width(frame.shape[1])
    return work.of_frame(frame)


def _rows_of_arrays(work: Job, column: Any) -> Array:
    arrays = column.to_list()
    for array in arrays:
        if array is None or len(array) != work.rows.width:
            wrong = "null" if array is None else f"an array of {len(array)} values"
            raise InvalidInputError(
                f"The model was trained on {work.rows.width} features, but the "
                f"column of arrays holds {wrong}."
            )
    rows = np.concatenate(arrays).reshape(len(arrays), work.rows.width)
    # whole numbers are float64 in the arrays that have a null
    return rows if rows.dtype == np.float32 else rows.astype(np.float64, copy=False)
