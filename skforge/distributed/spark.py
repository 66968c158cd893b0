"""Predict Spark data frames, with a pandas UDF or a pipeline stage.

::

    from skforge.distributed.spark import ForestTransformer, predict_udf

    score = predict_udf(fast, method="predict_raw")
    frame.withColumn("score", score("age", "income"))
    ForestTransformer(fast, inputCols=["age", "income"]).transform(frame)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skforge._docs import documented
from skforge.distributed._artifact import KeepEstimator, Packable, job
from skforge.distributed._spark_udf import udf_of

if TYPE_CHECKING:
    from skforge.distributed._spark_transformer import ForestTransformer

__all__ = ["ForestTransformer", "predict_udf"]


def __getattr__(name: str) -> object:
    if name == "ForestTransformer":  # loaded on use: its base classes need Spark
        from skforge.distributed._spark_transformer import ForestTransformer

        return ForestTransformer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@documented(job)
def predict_udf(
    model: Packable,
    *,
    method: str = "predict",
    n_jobs: int | None = 1,
    keep_estimator: KeepEstimator = "auto",
) -> Callable[..., Any]:
    """Return a function of Spark columns that predicts with a model.

    It is an iterator pandas UDF: rows arrive as Arrow batches, and a Python worker
    loads the broadcast model once for all batches and tasks.

    Parameters
    ----------
    n_jobs : int or None, default=1
        Threads of one task. Spark runs a task on each core of an executor, so 1 uses
        all cores; with ``spark.task.cpus=k``, use k.

    Returns
    -------
    callable
        ``udf(*columns) -> Column``. The columns, given as names or expressions, are the
        features in the model's order. Without arguments, the columns with the model's
        feature names are used. A single column of arrays may hold all features;
        ``vector_to_array`` of ``pyspark.ml.functions`` converts vectors. Nulls are
        missing values, text columns are categories. The result is a number, boolean or
        string of the model's own type, or an array of them.

    Raises
    ------
    InvalidInputError
        If the model lacks the method.
    UnsupportedModelError
        If Spark has no type for the results.
    RuntimeError
        If there is no Spark session.

    Notes
    -----
    Workers need skforge and the same versions of Python packages as the driver. Spark
    reruns a task that is lost with its worker; no row is counted twice, because the UDF
    only maps rows.

    Examples
    --------
    >>> udf = predict_udf(fast, method="predict_proba")        # doctest: +SKIP
    >>> frame.select("id", udf("age", "income").alias("p"))    # doctest: +SKIP
    """
    return udf_of(job(model, method, n_jobs, keep_estimator))
