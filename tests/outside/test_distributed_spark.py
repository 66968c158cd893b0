"""Spark: two tasks at a time; ``test_distributed_dask.py`` kills a worker."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier

pytest.importorskip("pyspark", reason="needs skforge[spark]")
pytest.importorskip("pyarrow", reason="needs skforge[spark]")
pd = pytest.importorskip("pandas")

from skforge import CompiledForest  # noqa: E402
from skforge.distributed.spark import ForestTransformer, predict_udf  # noqa: E402
from skforge.exceptions import InvalidInputError  # noqa: E402
from tests.distributed_tools import (  # noqa: E402
    NAMES,
    categorical_model,
    named_model,
    same_bits,
    slow_model,
    table,
)

JAVA = os.environ.get("JAVA_HOME") or shutil.which("java")

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(not JAVA, reason="Spark needs Java: no JAVA_HOME, no java"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # pandas 3
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


#: In one process, where a task is tried four times; and with two executors.
MASTERS = [
    "local[2,4]",
    pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=MASTERS)
def spark(tmp_path_factory, request):
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_WORKER_DIR", str(folder / "work"))
        patch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        session = (
            SparkSession.builder.master(request.param)
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.execution.arrow.pyspark.enabled", "true")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "5000")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture(scope="module")
def rows(spark):
    """Return rows with an id; NaN of pandas is null, and some partitions are empty."""
    frame = table().assign(id=np.arange(len(table())))
    made = spark.createDataFrame(frame.astype(object).where(frame.notna(), None),
        schema=", ".join([*(f"{name} float" for name in NAMES), "id long"]),
    )  # fmt: skip
    return made.repartition(3).where("id % 3 >= 0").cache()


def test_predictions_in_every_form(rows):
    from pyspark.sql import functions as F

    by_name = predict_udf(named_model())
    whole = F.array(*(F.col(name).cast("double") for name in NAMES))
    of_array = predict_udf(named_model(), method="predict_proba")
    contributions = predict_udf(named_model(), method="predict_contribs")
    # a partition of its own for few ids, so that others are empty
    found = (
        rows.repartition(7, (F.col("id") % 2).cast("int"))
        .select(
            "id",
            by_name().alias("label"),
            of_array(whole).alias("p"),
            contributions().alias("c"),
        )
    )  # fmt: skip
    assert [field.dataType.simpleString() for field in found.schema] == [
        "bigint",
        "string",
        "array<double>",
        "array<double>",
    ]
    found = found.toPandas().sort_values("id")
    assert found["id"].tolist() == list(range(len(table())))
    assert found["label"].tolist() == named_model().predict(table()).tolist()
    expected = named_model().predict_proba(table())
    same_bits(np.stack(list(found["p"])), expected)
    expected = named_model().predict_contribs(table())
    same_bits(np.stack(list(found["c"])).reshape(expected.shape), expected)


def test_categories_of_catboost(spark):
    fast, rows, wanted = categorical_model()
    frame = spark.createDataFrame(rows.assign(n=range(len(rows))))
    found = ForestTransformer(fast).transform(frame).toPandas().sort_values("n")
    same_bits(found["prediction"].to_numpy(), wanted)
    columns = [frame[name] for name in rows]
    found = frame.select("n", predict_udf(fast)(*columns).alias("p")).toPandas()
    same_bits(found.sort_values("n")["p"].to_numpy(), wanted)


def test_text_is_a_category(spark):
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=300), "c": pd.Categorical(rng.choice(list("pqr"), 300))}
    )
    y = (frame.c == "q") ^ (frame.x > 0)
    model = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1).fit(frame, y)
    fast = CompiledForest(model).fit(frame)
    spelled = spark.createDataFrame(frame.assign(c=frame.c.astype(str), n=range(300)))
    stage = ForestTransformer(fast, method="predict_raw", inputCols=["x", "c"])
    found = stage.transform(spelled).toPandas().sort_values("n")
    same_bits(found["prediction"].to_numpy(), model.predict(frame, raw_score=True))


def test_text_reaches_the_encoder_of_a_pipeline(spark):
    """Its codes are names of categories to the forest, which must not be guessed."""
    frame = pd.DataFrame({"x": np.arange(300.0), "c": list("pqr") * 100})
    steps = make_column_transformer((OrdinalEncoder(), ["c"]), remainder="passthrough")
    y = (frame.c == "q") ^ (frame.x > 99)
    model = make_pipeline(steps, DecisionTreeClassifier(max_depth=5)).fit(frame, y)
    fast = CompiledForest(model).fit(frame)
    rows = spark.createDataFrame(frame.assign(n=range(300)))
    found = ForestTransformer(fast).transform(rows).toPandas().sort_values("n")
    assert found["prediction"].tolist() == model.predict(frame).tolist()


@pytest.mark.slow
def test_a_stage_of_a_pipeline_is_saved_with_it(spark, rows, tmp_path):
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler

    assembler = VectorAssembler(
        inputCols=NAMES, outputCol="features", handleInvalid="keep"
    )
    stage = ForestTransformer(
        named_model(),
        featuresCol="features",
        outputCol="p",
        method="predict_proba",
        outputVector=True,
    )
    pipeline = Pipeline(stages=[assembler, stage, ForestTransformer(named_model())])
    folder = f"file://{tmp_path}/pipeline"
    pipeline.fit(rows).write().overwrite().save(folder)
    again = PipelineModel.load(folder)
    assert again.stages[1].artifact == stage.artifact
    assert again.stages[1].extractParamMap() == stage.extractParamMap()
    found = again.transform(rows)
    assert dict(found.dtypes)["p"] == "vector"
    found = found.select("id", "p", "prediction").toPandas().sort_values("id")
    expected = named_model().predict_proba(table())
    same_bits(np.stack([v.toArray() for v in found["p"]]), expected)
    assert found["prediction"].tolist() == named_model().predict(table()).tolist()


def test_what_cannot_be_taken_is_refused_before_anything_runs(spark, rows):
    with pytest.raises(InvalidInputError) as error:
        ForestTransformer(named_model()).transform(rows.drop("age"))
    assert str(error.value) == (
        "The rows lack the columns 'age'; they have 'income', 'rooms', 'tax', 'id'. "
        "Name the columns that are the model's features, in its order, with "
        "columns=[...]."
    )
    with pytest.raises(InvalidInputError) as error:
        spelled = rows.withColumn("tax", rows.tax.cast("string"))
        ForestTransformer(named_model()).transform(spelled)
    assert str(error.value) == (
        "The column 'tax' has the type string, which holds neither numbers nor "
        "categories of the model; cast it, or encode it as in training."
    )
    with pytest.raises(InvalidInputError) as error:
        predict_udf(slow_model())()
    assert str(error.value) == (
        "The model was trained without feature names; pass the columns of its 4 "
        "features, in the order of training."
    )
    with pytest.raises(InvalidInputError) as error:
        ForestTransformer().transform(rows)
    assert str(error.value) == (
        "The ForestTransformer has no model; create it as ForestTransformer(model)."
    )
