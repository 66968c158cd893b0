"""Predictions of Spark data frames: an iterator pandas UDF, and a stage of pipelines.

::

    from skforge.distributed.spark import ForestTransformer, predict_udf

    score = predict_udf(fast, method="predict_raw")
    frame.withColumn("score", score("age", "income"))
    ForestTransformer(fast, inputCols=["age", "income"]).transform(frame)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skforge.distributed._artifact import Artifact, KeepEstimator
from skforge.distributed._job import job
from skforge.distributed._spark_udf import udf_of

if TYPE_CHECKING:
    from skforge.distributed._spark_transformer import ForestTransformer
    from skforge.estimators import CompiledForest

__all__ = ["ForestTransformer", "predict_udf"]


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
