"""What all engines share: artifacts, the models of a process, answers, frames."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import load_forest
from skforge.distributed import Artifact, _artifact, pack
from skforge.distributed._artifact import job
from skforge.distributed._spark_udf import _answer, spark_type
from skforge.distributed.ray import Predictor
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)
from skforge.prediction.answers import METHODS
from tests.comparing import in_child
from tests.noted import calls_of, run_threads
from tests.plain import plain
from tests.programs import run_python
from tests.refusals import error_of

pytest.importorskip("polars")
lgb, xgb = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
pd = pytest.importorskip("pandas")

from tests.distributed_tools import NAMES, n_kept, named_model, same_bits, table  # noqa: E402 - it needs pandas
from tests.forms import COLUMNS  # noqa: E402
from tests.kinds import CLASSIFIERS, MODELS, ROWS, Kind  # noqa: E402


@pytest.fixture(autouse=True)
def no_models_yet():
    _artifact._slot.cache_clear()


KINDS = {
    "text labels": MODELS["forest of three names"],
    "two targets": MODELS["forest of labels"],
    "three values": MODELS["extra of columns"],
    "boosting": MODELS["gb of odd"],
    "outliers": MODELS["isolation"],
    "adaboost": MODELS["adaboost of odd"],
    "xgboost": Kind(CLASSIFIERS["xgboost"], "three", "frame"),
    "xgboost, one tree": MODELS["xgboost, one tree"],
    "lightgbm": Kind(CLASSIFIERS["lightgbm"], "three", "frame"),
}


def trained(kind="text labels"):
    return KINDS[kind].fitted(), ROWS[KINDS[kind].on]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_what_is_described_is_what_comes(kind):
    model, X = trained(kind)
    fast = plain(model).fit(X)
    for method in METHODS:
        if not hasattr(fast, method):
            continue
        work = job(fast, method, 1, "auto")
        with np.errstate(divide="ignore"):
            expected = getattr(fast, method)(X)
        if isinstance(expected, list):
            expected = np.concatenate(expected, axis=1)
        expected = expected.reshape(len(X), -1) if expected.ndim == 3 else expected
        with np.errstate(divide="ignore"):
            same_bits(work.of_frame(pd.DataFrame(X)), expected)
        empty = work.of_frame(pd.DataFrame(X)[:0])
        assert empty.dtype == expected.dtype == work.answer.dtype
        assert empty.shape == (0, *expected.shape[1:])
        assert len(work.answer.names) == (work.answer.width or 1)
        assert len(set(work.answer.names)) == len(work.answer.names)


def test_columns_of_classes_are_named_after_them():
    assert job(named_model(), "predict_proba", 1, "auto").answer.names == (
        "probability_high",
        "probability_low",
        "probability_mid",
    )
    assert job(named_model(), "predict", 1, "auto").answer.names == ("prediction",)


# ------------------------------------------------------------ artifacts


PLACES = (*range(6), "bias")
CONTRIBUTED = {
    "xgboost": [f"{c}_{n}" for c in (0, 1, 2) for n in [*COLUMNS, "bias"]],
    "xgboost, one tree": [*range(6), "bias"],
    "text labels": [f"{c}_{n}" for c in ("high", "low", "middle") for n in PLACES],
    "three values": [f"{c}_{n}" for c in (0, 1, 2) for n in PLACES],
}


@pytest.mark.parametrize("kind", CONTRIBUTED)
def test_columns_of_contributions_are_named_after_features(kind):
    model, X = trained(kind)
    work = job(plain(model).fit(X), "predict_contribs", 1, "auto")
    expected = tuple(f"contribution_{name}" for name in CONTRIBUTED[kind])
    assert work.answer.names == expected


def test_features_that_a_step_makes_have_no_names_of_columns():
    frame = table().fillna(0.0)
    forest = RandomForestRegressor(3, max_depth=3)
    model = make_pipeline(PCA(4), forest).fit(frame, frame["tax"])
    work = job(plain(model).fit(frame), "predict_contribs", 1, "auto")
    names = ("0", "1", "2", "3", "bias")
    assert work.answer.names == tuple(f"contribution_{name}" for name in names)


def test_names_of_contributions_that_would_be_there_twice_are_numbers():
    frame = table().set_axis(["a", "bias", "b", "c"], axis=1)
    model = xgb.XGBRegressor(n_estimators=1).fit(frame, frame["c"])
    work = job(plain(model).fit(frame), "predict_contribs", 1, "auto")
    assert work.answer.names == tuple(f"contribution_{i}" for i in range(5))


def test_contributions_that_are_not_defined_are_refused_before_anything_runs():
    model, X = trained("three values")
    bare = replace(load_forest(model), cover=np.zeros(0))
    fast = plain(bare).fit(X)
    assert error_of(
        UnsupportedModelError, job, fast, "predict_contribs", 1, "auto"
    ) == error_of(UnsupportedModelError, fast.predict_contribs, X)


def test_an_artifact_is_small_and_the_same_every_time():
    artifact = pack(named_model())
    assert not artifact.pickled
    assert pack(named_model()) == artifact and pack(artifact) is artifact
    assert pickle.loads(pickle.dumps(artifact)) == artifact
    assert len(artifact.payload) < 100_000
    assert repr(artifact) == (
        f"<Artifact: .skforge, {len(artifact.payload):,} bytes, "
        f"{artifact.checksum[:12]}>"
    )


def test_an_artifact_of_a_file(tmp_path):
    skforge.save(named_model(), tmp_path / "a.skforge")
    same_bits(
        pack(tmp_path / "a.skforge").load().predict_proba(table()),
        named_model().predict_proba(table()),
    )
    skforge.save(named_model().forest_, tmp_path / "b.skforge")
    assert error_of(InvalidInputError, pack, tmp_path / "b.skforge") == (
        "model must be a fitted CompiledForest, or the path of a .skforge file that "
        f"holds one. Got {tmp_path / 'b.skforge'}, which holds a Forest, instead."
    )


def test_a_damaged_artifact_is_noticed():
    artifact = pack(named_model())
    payload = bytearray(artifact.payload)
    payload[len(payload) // 2] ^= 1
    assert error_of(
        InvalidModelError, replace(artifact, payload=bytes(payload)).load
    ) == (
        f"The artifact {artifact.checksum[:12]} was damaged on its way to this "
        "process; send it again."
    )


def with_categories():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=300), "c": pd.Categorical(rng.choice(list("pqr"), 300))}
    )
    frame.loc[::5, "x"] = np.nan
    return frame, ((frame.c == "q") ^ (frame.x > 0)).astype(int)


CATEGORICAL = {
    "histogram": HistGradientBoostingClassifier(
        max_iter=4, categorical_features="from_dtype"
    ),
    "xgboost": xgb.XGBClassifier(n_estimators=4, enable_categorical=True),
    "lightgbm": lgb.LGBMClassifier(n_estimators=4, verbose=-1),
}


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "bool"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_numbers_are_categories_where_training_had_some(library, dtype):
    """Engines have no such dtype: their columns have the values."""
    if library == "xgboost" and dtype in ("float64", "bool"):
        pytest.skip("XGBoost takes no such categories")
    rng = np.random.default_rng(0)
    values = pd.Series(rng.integers(0, 2 if dtype == "bool" else 4, 200))
    column = (values if dtype == "bool" else values + 3).astype(dtype)
    stars = pd.Categorical(column, ordered=library == "lightgbm")
    frame = pd.DataFrame({"x": rng.normal(size=200), "stars": stars})
    model = {
        "xgboost": xgb.XGBRegressor(n_estimators=4, enable_categorical=True),
        "lightgbm": lgb.LGBMRegressor(n_estimators=4, verbose=-1),
    }[library]
    fast = plain(model.fit(frame, values + frame.x)).fit(frame)
    work, expected = job(fast, "predict", 1, "auto"), model.predict(frame)
    same_bits(work.of_frame(frame), expected)
    same_bits(work.of_frame(frame.assign(stars=column)), expected)
    few = frame[:9].copy()
    few.loc[::2, "stars"] = None
    expected = model.predict(few)
    for gaps in (
        few.stars.astype(object).where(few.stars.notna(), None),
        few.stars.astype("boolean" if dtype == "bool" else "Float64"),
    ):
        same_bits(work.of_frame(few.assign(stars=gaps)), expected)
    none = few.assign(stars=pd.Categorical([None] * 9, stars.categories))
    for nothing in (np.nan, np.array([None] * 9)):
        answer = work.of_frame(few.assign(stars=nothing))
        same_bits(answer, model.predict(none))


def test_text_for_a_number_is_no_category_of_another_column():
    """LightGBM gives its lists to a frame's columns of categories in their order."""
    frame, y = with_categories()
    model = clone(CATEGORICAL["lightgbm"]).fit(frame, y)
    work = job(plain(model).fit(frame), "predict", 1, "auto")
    assert error_of(InvalidInputError, work.of_frame, frame.assign(x="q", c=1.0)) == (
        "The column 'x' holds text, but the model has no category names; encode it as "
        "in training."
    )


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_categories_missing_values_and_text(kind):
    frame, y = with_categories()
    model = clone(CATEGORICAL[kind]).fit(frame, y)
    fast = plain(model).fit(frame)
    work = job(fast, "predict_proba", 1, "auto")
    assert not work.artifact.pickled  # the names of categories are in the forest
    expected = model.predict_proba(frame)
    same_bits(work.of_frame(frame), expected)
    few = frame[20:40]
    few = few[few.c != "p"]  # a part that has not met all categories
    spelled = few.assign(c=few.c.astype(str))
    same_bits(work.of_frame(spelled), model.predict_proba(few))
    for x in (
        frame.x.astype("Float64"),
        frame.x.astype(object).where(frame.x.notna(), None),
    ):
        same_bits(work.of_frame(frame.assign(x=x)), expected)
    part = frame[:20].assign(c=pd.Categorical([None] * 20, categories=list("pqr")))
    expected = model.predict_proba(part)
    for nothing in (np.nan, np.array([None] * 20), pd.Categorical([None] * 20)):
        same_bits(work.of_frame(part.assign(c=nothing)), expected)


def coded(kind):
    """Return a model of categories that were numbers in training, and these rows."""
    frame, y = with_categories()
    X = np.c_[frame.x, frame.c.cat.codes].astype(np.float32)
    model = clone(CATEGORICAL[kind])
    if kind == "xgboost":
        return model.set_params(feature_types=["q", "c"]).fit(X, y), X, frame
    return model.fit(X, y, categorical_feature=[1]), X, frame


@pytest.mark.parametrize("keep", ["auto", True])
@pytest.mark.parametrize("kind", ["xgboost", "lightgbm"])
def test_names_of_categories_are_not_guessed(kind, keep):
    model, X, frame = coded(kind)
    fast = plain(model).fit(X)
    work = job(fast, "predict_proba", 1, keep)
    same_bits(work.of_frame(pd.DataFrame(X)), model.predict_proba(X))
    # each part has a list of names of its own, whose positions are other ones
    assert error_of(
        InvalidInputError,
        work.of_frame,
        frame[frame.c != "p"].assign(c=lambda part: part.c.astype(str)),
    ) == (
        "The column 'c' holds text, but the model has no category names; encode it as "
        "in training."
    )
    if keep == "auto":
        with pytest.raises(InvalidInputError, match="row 0 has 'p' in column"):
            work.of_frame(frame)


def test_pickles_are_sent_only_where_nothing_else_can_be():
    frame, y = with_categories()
    models = {kind: trained(kind) for kind in KINDS}
    models |= {f"coded {kind}": coded(kind)[:2] for kind in ("xgboost", "lightgbm")}
    for kind, model in CATEGORICAL.items():
        models[f"named {kind}"] = clone(model).fit(frame, y), frame
    models["calibrated"] = calibrated(), trained()[1]
    models["stacked"] = stacked(), trained()[1]
    forms = {
        kind: pack(plain(model).fit(X)).pickled for kind, (model, X) in models.items()
    }
    assert len(forms) == len(KINDS) + 7
    assert [kind for kind, pickled in forms.items() if pickled] == ["stacked"]


def calibrated():
    model, X = trained()
    return CalibratedClassifierCV(FrozenEstimator(model)).fit(X, model.predict(X))


def stacked():
    model, X = trained()
    return StackingClassifier([("a", model)], cv="prefit").fit(X, model.predict(X))


def test_a_model_that_cannot_leave_its_source_behind():
    fast = plain(stacked()).fit(trained()[1])
    assert "the rest runs in scikit-learn, and a .skforge file" in error_of(
        UnsupportedModelError, pack, fast, keep_estimator=False
    )
    assert pack(named_model(), keep_estimator=True).pickled


@pytest.mark.sampled(1)
@pytest.mark.parametrize("categories", [False, True])
def test_another_process_needs_neither_the_source_nor_the_estimator(
    tmp_path, categories
):
    if categories:
        X, y = with_categories()
        model = clone(CATEGORICAL["xgboost"]).fit(X, y)
    else:
        model, X = trained("xgboost")
    fast = plain(model).fit(X)
    work = job(fast, "predict_proba", 1, "auto")
    (tmp_path / "job").write_bytes(pickle.dumps((work, X)))
    code = (
        "import pickle, sys; sys.modules['xgboost'] = None;"  # cannot be imported
        "work, X = pickle.load(open('job', 'rb'));"
        "print(work.of_frame(X).tobytes().hex(), end='')"
    )
    assert run_python(code, cwd=tmp_path) == model.predict_proba(X).tobytes().hex()


# ------------------------------------------------------------ the models of a process


def test_tasks_at_once_share_one_model(monkeypatch):
    artifact, loads = pack(named_model()), calls_of(monkeypatch, Artifact, "load")
    work = job(artifact, "predict_proba", 1, "auto")
    _artifact._slot.cache_clear()
    loads.clear()

    def task(_):
        return _artifact.loaded(artifact, 1), work.of_frame(table())

    found = run_threads(task, 8)
    assert loads == [(artifact,)] and n_kept() == 1
    assert len({id(model) for model, _ in found}) == 1
    for _, answer in found:
        same_bits(answer, named_model().predict_proba(table()))


def test_each_number_of_threads_is_a_model_of_its_own():
    artifact = pack(named_model())
    one, two = _artifact.loaded(artifact, 1), _artifact.loaded(artifact, 2)
    assert (one.n_jobs, two.n_jobs) == (1, 2)
    assert _artifact.loaded(artifact, 1) is one
    for model in (one, two):
        same_bits(model.predict_proba(table()), named_model().predict_proba(table()))


def test_models_asked_for_long_ago_are_forgotten(monkeypatch):
    artifact, loads = pack(named_model()), calls_of(monkeypatch, Artifact, "load")
    most = _artifact.MOST_MODELS
    for n_jobs in (*range(1, most + 1), 1, most + 1):  # the second one has to go
        _artifact.loaded(artifact, n_jobs)
    assert n_kept() == most and len(loads) == most + 1
    _artifact.loaded(artifact, 1)
    assert len(loads) == most + 1
    _artifact.loaded(artifact, 2)
    assert len(loads) == most + 2


def test_a_load_that_failed_is_tried_again(monkeypatch):
    artifact = pack(named_model())
    with monkeypatch.context() as patch:
        patch.setattr(Artifact, "load", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _artifact.loaded(artifact, 1)
    assert _artifact.loaded(artifact, 1).forest_.n_trees == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_a_model_loads_does_not_hang():
    artifact = pack(named_model())
    with _artifact._slot(artifact.checksum, 1).lock:
        assert in_child(lambda: _artifact.loaded(artifact, 1).forest_.n_trees) == 0


# ------------------------------------------------------------ arguments


def test_methods_that_are_not_there():
    model, X = trained("three values")
    fast = plain(model).fit(X)
    assert error_of(InvalidInputError, job, fast, "predict_proba", 1, "auto") == (
        "The model has no predict_proba; it has predict, predict_raw, apply, "
        "predict_contribs."
    )
    assert error_of(InvalidInputError, job, fast, "fit", 1, "auto") == (
        "method must be one of predict, predict_proba, predict_log_proba, "
        "predict_raw, decision_function, score_samples, apply, predict_contribs. Got "
        "'fit' instead."
    )


def test_names_that_lightgbm_makes_up_are_not_asked_for():
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = lgb.LGBMRegressor(n_estimators=3, verbose=-1).fit(X, X[:, 0])
    work = job(plain(model).fit(X), "predict", 1, "auto")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert work.columns_of(frame.columns, None) == ["a", "b", "c"]
    same_bits(work.of_frame(frame), model.predict(X))


@pytest.mark.parametrize("keep", [True, False])
def test_texts_reach_the_steps_inside_a_wrapper(keep):
    frame = pd.DataFrame({"size": ["s", "m", "l", "m"] * 25, "x": np.arange(100.0)})
    y = np.arange(100) % 3 == 0
    steps = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), ["size"]), remainder="passthrough"
        ),
        DecisionTreeClassifier(max_depth=4, random_state=0),
    )
    model = CalibratedClassifierCV(steps, cv=2).fit(frame, y)
    work = job(plain(model).fit(frame), "predict_proba", 1, keep)
    some = frame[:9].assign(size=frame["size"][:9].astype("string"))
    some.loc[3, "size"] = pd.NA
    objects = some.assign(size=some["size"].astype(object).fillna(np.nan))
    same_bits(work.of_frame(some), model.predict_proba(objects))


def test_columns_are_found_by_name():
    work = job(named_model(), "predict", 1, "auto")
    there = ["id", *reversed(NAMES)]
    assert work.columns_of(there, None) == NAMES
    assert work.columns_of(there, NAMES[::-1]) == NAMES[::-1]
    assert error_of(InvalidInputError, work.columns_of, ["id", "age", "tax"], None) == (
        "The rows lack the columns 'income', 'rooms'; they have 'id', 'age', 'tax'. "
        "Name the columns that are the model's features, in its order, with "
        "columns=[...]."
    )
    assert error_of(InvalidInputError, work.columns_of, there, ["age", "tax"]) == (
        "The model was trained on 4 features, but the rows have 2 columns."
    )
    assert error_of(InvalidInputError, work.columns_of, there, "age") == (
        "columns must be a list of names. Got 'age' instead; use ['age'] for one "
        "column."
    )


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (
            ["1", "2"],
            "The column 'rooms' holds text, but the model has no category names; "
            "encode it as in training.",
        ),
        (
            np.array(["2020-01-01", "2020-01-02"], "M8[ns]"),
            "The column 'rooms' has the dtype datetime64[ns], which holds neither "
            "numbers nor categories; convert it to float64.",
        ),
        (
            [[1], [2]],
            "The column 'rooms' has the dtype object, which holds neither numbers nor "
            "categories; convert it to float64.",
        ),
    ],
)
def test_columns_that_are_no_numbers(column, why):
    work = job(named_model(), "predict", 1, "auto")
    assert (
        error_of(InvalidInputError, work.of_frame, table()[:2].assign(rooms=column))
        == why
    )


# ------------------------------------------------------------ Ray's and Spark's parts


def batch_of(form):
    frame = table().assign(id=np.arange(len(table())))
    if form == "numpy":
        return {name: frame[name].to_numpy() for name in frame}
    return frame if form == "pandas" else pytest.importorskip("pyarrow").table(frame)


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_a_batch_of_ray_keeps_its_form(form):
    expected = named_model().predict_proba(table())
    call = Predictor(named_model(), "predict_proba", keep=["id"])
    found = call(batch_of(form))
    assert type(found) is type(batch_of(form))
    names = found.column_names if form == "pyarrow" else list(found)
    assert names == ["id", "probability_high", "probability_low", "probability_mid"]
    same_bits(np.stack([found[name] for name in names[1:]], axis=1), expected)
    whole = Predictor(named_model())(batch_of(form))
    assert len(whole.column_names if form == "pyarrow" else list(whole)) == 6
    same_bits(
        np.asarray(whole["prediction"]).astype(str),
        named_model().predict(table()).astype(str),
    )


def test_one_tensor_holds_all_features():
    model, X = trained("text labels")
    fast = plain(model).fit(X)
    batch = {"data": X, "id": np.arange(len(X))}
    found = Predictor(fast, "predict_raw", columns=["data"], keep=False)(batch)
    assert list(found) == [f"raw_{label}" for label in ("high", "low", "middle")]
    same_bits(np.stack([*found.values()], axis=1), fast.predict_raw(X))
    assert (
        error_of(
            InvalidInputError, Predictor(fast, columns=["data"], keep=["no"]), batch
        )
        == "keep names 'no', but the dataset has only the columns 'data', 'id'."
    )


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        ("text labels", "predict", "string"),
        ("text labels", "predict_proba", "array<double>"),
        ("outliers", "predict", "bigint"),
        ("xgboost", "predict_raw", "array<float>"),
        ("xgboost, one tree", "predict", "float"),
        ("lightgbm", "predict_raw", "array<double>"),
        ("xgboost", "predict_contribs", "array<float>"),
    ],
)
def test_types_of_spark(kind, method, name):
    model, X = trained(kind)
    assert spark_type(job(plain(model).fit(X), method, 1, "auto")) == name


def test_an_empty_batch_of_arrays_has_an_empty_answer():
    model, X = trained("boosting")
    work = job(plain(model).fit(X), "predict_proba", 1, "auto")
    frame = pd.DataFrame({"f0": list(X)})
    same_bits(_answer(work, frame), model.predict_proba(X))
    empty = _answer(work, frame[:0])
    assert empty.shape == (0, 3) and empty.dtype == work.answer.dtype


def test_contributions_in_every_engine():
    """All engines ask the same job: what Ray and Spark make of its answer."""
    fast, frame = named_model(), table()[:9]
    expected = fast.predict_contribs(frame)
    batch = {name: frame[name].to_numpy() for name in NAMES}
    found = Predictor(fast, "predict_contribs", keep=["age"])(batch)
    names = [f"contribution_{c}_{n}" for c in fast.classes_ for n in [*NAMES, "bias"]]
    assert list(found) == ["age", *names]
    columns = np.stack([found[name] for name in names], axis=1)
    same_bits(columns.reshape(expected.shape), expected)
    work = job(fast, "predict_contribs", 1, "auto")
    same_bits(_answer(work, frame).reshape(expected.shape), expected)
    assert spark_type(work) == "array<double>"
