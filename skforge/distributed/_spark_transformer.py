"""A Spark pipeline stage that predicts with a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.ml import Transformer  # noqa: TID253 - it is a subclass of this
from pyspark.ml.param import Param, Params, TypeConverters  # noqa: TID253
from pyspark.ml.param.shared import HasFeaturesCol, HasInputCols, HasOutputCol  # noqa: TID253
from pyspark.ml.util import (  # noqa: TID253
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLWritable,
)

from skforge.distributed._artifact import Artifact, KeepEstimator, Packable, job, pack
from skforge.distributed._spark_udf import quoted, udf_of
from skforge.exceptions import InvalidInputError
from skforge.sources.row_facts import RowFacts

__all__ = ["ForestTransformer"]


def _setter(parameter: str, what: str) -> Callable[[Any, Any], ForestTransformer]:
    def method(self: Any, value: Any) -> ForestTransformer:
        return self._set(**{parameter: value})

    method.__doc__ = f"Set {what}."
    method.__name__ = f"set{parameter[0].upper()}{parameter[1:]}"
    return method


def _param(name: str, what: str, convert: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, what, typeConverter=convert)


class ForestTransformer(
    Transformer, HasInputCols, HasFeaturesCol, HasOutputCol, MLReadable, MLWritable
):
    """Adds a column of predictions to data frames in Spark pipelines.

    Uses :func:`skforge.distributed.spark.predict_udf`.

    Parameters
    ----------
    model : CompiledForest, Artifact or path, default=None
        A fitted model, a ``.skforge`` file, or an artifact from
        :func:`skforge.distributed.pack`.
    inputCols : list of str, default=None
        The feature columns in the model's order. None uses the feature names the model
        was trained with, or all columns if it has none.
    featuresCol : str, default=None
        One column of vectors or arrays with all features, instead of ``inputCols``.
    outputCol : str, default="prediction"
        The column of predictions.
    method : str, default="predict"
        The method of the model, such as ``predict_proba``.
    outputVector : bool, default=False
        Whether several values per row are returned as a vector of doubles, as Spark's
        evaluators expect probabilities, instead of an array of the model's type.
    nJobs : int, default=1
        Number of threads per task.
    keep_estimator : bool or "auto", default="auto"
        See :func:`skforge.distributed.pack`.

    Attributes
    ----------
    artifact : Artifact
        The packed model that is broadcast.

    Notes
    -----
    ``save`` writes the parameters as Spark's own stages do, and the model beside them,
    on any file system that Spark supports. A model with its source estimator is saved
    as a pickle: load only files you trust.
    """

    method = _param("method", "the method of the model", TypeConverters.toString)
    outputVector = _param(
        "outputVector",
        "whether several values per row become a vector of doubles instead of an array",
        TypeConverters.toBoolean,
    )
    nJobs = _param("nJobs", "number of threads per task", TypeConverters.toInt)

    def __init__(
        self,
        model: Packable | None = None,
        *,
        inputCols: list[str] | None = None,
        featuresCol: str | None = None,
        outputCol: str = "prediction",
        method: str = "predict",
        outputVector: bool = False,
        nJobs: int = 1,
        keep_estimator: KeepEstimator = "auto",
    ) -> None:
        super().__init__()
        # Remove Spark's default "features", to see whether the user set it.
        self._defaultParamMap.pop(self.featuresCol, None)
        self._setDefault(
            outputCol="prediction", method="predict", outputVector=False, nJobs=1
        )
        params = {
            "inputCols": inputCols,
            "featuresCol": featuresCol,
            "outputCol": outputCol,
            "method": method,
            "outputVector": outputVector,
            "nJobs": nJobs,
        }
        self._set(**{name: v for name, v in params.items() if v is not None})
        self.artifact: Artifact | None = None
        if model is not None:
            self.artifact = pack(model, keep_estimator=keep_estimator)

    setInputCols = _setter("inputCols", "the feature columns, in the model's order")
    setFeaturesCol = _setter(
        "featuresCol", "the one column of vectors or arrays that holds the features"
    )
    setOutputCol = _setter("outputCol", "the column of predictions")
    setMethod = _setter("method", "the method of the model")
    setOutputVector = _setter(
        "outputVector", "whether several values per row are returned as a vector"
    )
    setNJobs = _setter("nJobs", "the number of threads per task")

    def _transform(self, dataset: Any) -> Any:
        from pyspark.ml.functions import array_to_vector

        if self.artifact is None:
            raise InvalidInputError(
                "The ForestTransformer has no model; create it as "
                "ForestTransformer(model)."
            )
        method, n_jobs = map(self.getOrDefault, (self.method, self.nJobs))
        work = job(self.artifact, method, n_jobs, "auto")
        if self.isSet(self.featuresCol) and self.isSet(self.inputCols):
            raise InvalidInputError(
                "inputCols and featuresCol are both set; clear one of them."
            )
        if self.isSet(self.featuresCol):
            columns = [_array(dataset, self.getFeaturesCol())]
        else:
            asked = self.getInputCols() if self.isSet(self.inputCols) else None
            names = work.columns_of(dataset.columns, asked)
            columns = [_checked(dataset, *it, work.rows) for it in enumerate(names)]
        predicted = udf_of(work)(*columns)
        if self.getOrDefault(self.outputVector) and work.answer.width is not None:
            predicted = array_to_vector(predicted.cast("array<double>"))
        return dataset.withColumn(self.getOutputCol(), predicted)

    def write(self) -> DefaultParamsWriter:
        """Return the writer of this stage."""
        return _Writer(self)

    @classmethod
    def read(cls) -> DefaultParamsReader[ForestTransformer]:
        """Return the reader of such stages."""
        return _Reader(cls)


def _array(dataset: Any, name: str) -> Any:
    from pyspark.ml.functions import vector_to_array

    if name not in dataset.columns:
        raise InvalidInputError(
            f"The rows lack the column {name!r} of features; they have "
            f"{', '.join(map(repr, dataset.columns))}."
        )
    column = dataset[quoted(name)]
    kind = dataset.schema[name].dataType.typeName()
    if kind == "array":
        return column
    if kind == "vectorudt" or "vector" in kind:
        return vector_to_array(column)
    raise InvalidInputError(
        f"The column {name!r} of features has the type {kind}, but must hold vectors "
        "or arrays; use inputCols for columns of single values."
    )


def _checked(dataset: Any, place: int, name: str, rows: RowFacts) -> Any:
    texts = rows.by_value or rows.steps or place in rows.hashed
    column, kind = dataset[quoted(name)], dataset.schema[name].dataType.typeName()
    if kind == "decimal":
        return column.cast("double")
    if kind in _NUMBERS or (kind in ("string", "varchar", "char") and texts):
        return column
    raise InvalidInputError(
        f"The column {name!r} has the type {kind}, which holds neither numbers nor "
        "categories of the model; cast it, or encode it as in training."
    )


_NUMBERS = {"boolean", "byte", "short", "integer", "long", "float", "double"}


class _Writer(DefaultParamsWriter):
    """Writes the parameters as metadata, and the model as one row of Parquet."""

    def saveImpl(self, path: str) -> None:
        artifact = self.instance.artifact
        if artifact is None:
            raise InvalidInputError(
                "The ForestTransformer has no model, so there is nothing to save."
            )
        super().saveImpl(path)
        row = (bytearray(artifact.payload), artifact.pickled, artifact.checksum)
        schema = "payload binary, pickled boolean, checksum string"
        table = self.sparkSession.createDataFrame([row], schema).coalesce(1)
        # uncompressed: compression needs a native library and gains little
        table.write.option("compression", "none").parquet(f"{path}/artifact")


class _Reader(DefaultParamsReader[ForestTransformer]):
    def load(self, path: str) -> ForestTransformer:
        stage = super().load(path)
        row = self.sparkSession.read.parquet(f"{path}/artifact").first()
        stage.artifact = Artifact(bytes(row.payload), row.pickled, row.checksum)
        return stage
