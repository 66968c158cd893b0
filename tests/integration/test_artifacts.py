"""Models that travel: pickles, copies, ``.skforge`` files, other processes."""

from __future__ import annotations

import copy
import datetime
import gzip
import io
import itertools
import json
import os
import pickle
import re
import sys
import warnings
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import joblib
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from joblib.externals.loky.backend.reduction import dumps  # with cloudpickle
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.impute import MissingIndicator
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import (
    CompiledForest,
    InvalidInputError,
    InvalidModelError,
    Schedule,
    Target,
    UnsupportedModelError,
    compile_forest,
    load_forest,
)
from skforge._version import FORMAT
from skforge.exceptions import InconsistentVersionWarning, SourceNeededError
from skforge.forest.arrays import LAYOUT
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.modules.compiled import CompiledModule
from skforge.persistence.stored_tuner import tuner_in, tuner_out
from skforge.tuning import (
    Learned,
    Round,
    ScheduleSpace,
    SuccessiveHalving,
    Tuner,
    TuningRecords,
)
from tests.compared_calls import called, difference
from tests.comparing import saved
from tests.forging import NOTHING, changed, manifest_of, places, put
from tests.kinds import MODELS, ROWS, TARGETS
from tests.plain import plain
from tests.programs import run_python
from tests.refusals import error_of

ROOT = Path(__file__).parents[2]
X, Y = make_classification(300, 6, n_informative=4, n_classes=3, random_state=0)
X32 = X.astype(np.float32)
NAMES = np.array(["oak", "elm", "ash"])
SCHEDULE = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


def random_forest(labels):
    return RandomForestClassifier(4, max_depth=4, random_state=0).fit(X, labels)


@pytest.fixture
def compared(monkeypatch):
    """Let files be compared with the model before they are written, as for users."""
    monkeypatch.delenv("SKFORGE_CHECK", raising=False)


@pytest.fixture(scope="module")
def fitted():
    """Return a function: the compiled model of a name, compiled once."""
    kept = {}

    def get(name):
        if name not in kept:
            # one small kernel: the default schedules would compile for half a second
            model = CompiledForest(MODELS[name].fitted(), schedule=SCHEDULE)
            kept[name] = model.fit(ROWS[MODELS[name].on])
        return kept[name]

    return get


def equal(found, expected):
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(equal, found, expected))
    if not isinstance(expected, np.ndarray):
        return type(found) is type(expected) and found == expected
    return (
        isinstance(found, np.ndarray)
        and found.dtype == expected.dtype
        and found.shape == expected.shape
        and np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")
    )


ATTRIBUTES = "classes_", "n_features_in_", "feature_names_in_", "feature_importances_"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MODELS)
def test_files_and_dropped_estimators_keep_attributes(name, fitted, tmp_path):
    """``test_kinds.py`` compares their answers."""
    compiled, rows = fitted(name), ROWS[MODELS[name].on]
    scores = hasattr(compiled, "score") and compiled.predict(rows).ndim == 1
    # their score is a method of the library, which files do without
    scores &= not name.startswith("catboost") and "ranker" not in name
    for other in (saved(compiled, tmp_path), compiled.drop_estimator()):
        if scores:
            labels = compiled.predict(rows)
            assert other.score(rows, labels) == compiled.score(rows, labels) == 1.0
        for attribute in ATTRIBUTES:
            if (name, attribute) == ("catboost, ranker", "feature_importances_"):
                continue  # None
            assert hasattr(other, attribute) == hasattr(compiled, attribute)
            if hasattr(other, attribute):
                expected = getattr(compiled, attribute)
                assert equal(getattr(other, attribute), expected)
        assert other.forest_.content_hash() == compiled.forest_.content_hash()
        assert other.schedule_ == compiled.schedule_
        assert other.fitted_target_ == compiled.fitted_target_
        assert other.__sklearn_tags__() == compiled.__sklearn_tags__()
        assert not hasattr(other, "estimator_")


SKLEARN = [
    name
    for name, kind in MODELS.items()
    if kind.on == "array" and not name.startswith(("xgboost", "lightgbm", "catboost"))
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SKLEARN)
def test_rows_are_refused_in_the_words_of_scikit_learn(name, fitted, tmp_path):
    compiled, loaded = fitted(name), saved(fitted(name), tmp_path)
    for rows in (X[:, :3], X[0], X32[:0], [["a"] * 6], X[:2].astype(complex)):
        expected = called(compiled.predict, rows)
        assert expected[1] and called(loaded.predict, rows) == expected


def test_frames_are_checked_by_name(fitted, tmp_path):
    compiled = fitted("forest of a frame")
    wrong = ROWS["frame"][list("badcfe")]
    expected = called(compiled.predict, wrong)
    assert "feature names" in expected[1]
    assert called(saved(compiled, tmp_path).predict, wrong) == expected


@pytest.mark.parametrize("dtype", ["str", "object"])
def test_texts_where_training_had_categories(dtype, tmp_path):
    """A frame that ``read_csv`` made has texts: the error says how to convert them."""
    pytest.importorskip("xgboost", "3.1")
    city = np.array(["Bern", "Oslo", "Rome"])[np.arange(len(X)) % 3]
    frame = pd.DataFrame({"size": X[:, 0], "city": pd.Categorical(city)})
    model = xgb.XGBClassifier(n_estimators=2, enable_categorical=True).fit(frame, Y)
    loaded = saved(plain(model).fit(frame), tmp_path)
    rows = frame[:4].astype({"city": dtype})
    with pytest.raises(SourceNeededError) as error:
        loaded.predict(rows)
    call = "X.astype({'city': 'category'})"
    assert f"Convert with {call}, or use the original model." in str(error.value)
    converted = rows.astype({"city": "category"})
    assert equal(loaded.predict(converted), model.predict(frame[:4]))
    rows = rows.assign(city=["Bern", "Paris", "Rome", "Oslo"])
    with pytest.raises(SourceNeededError, match="where training rows had categories;"):
        loaded.predict(rows.astype({"city": dtype}))
    match = r"column 'city' \(category\) has 'Paris', which is not among the categories"
    with pytest.raises(SourceNeededError, match=match):
        loaded.predict(rows.astype({"city": "category"}))


def test_what_needs_the_source_says_so(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = xgb.XGBClassifier(n_estimators=2).fit(frame, Y)
    loaded = saved(plain(model).fit(frame), tmp_path)
    tail = "which this CompiledForest was saved without; use the original model."
    assert error_of(SourceNeededError, loaded.predict, X, output_margin=True) == (
        f"predict with output_margin needs the XGBClassifier itself, {tail}"
    )
    assert (
        error_of(SourceNeededError, getattr, loaded, "estimator_")
        == f"estimator_ needs the XGBClassifier itself, {tail}"
    )
    with pytest.raises(SourceNeededError) as error:
        loaded.predict(frame.assign(b=1).astype({"b": "category"}))
    assert str(error.value) == (
        "predict of these rows (DataFrame of shape (300, 6)) needs the XGBClassifier "
        "itself, which this CompiledForest was saved without: column 'b' is category. "
        "Convert with X.astype({'b': 'float64'}), or use the original model."
    )
    assert pickle.loads(pickle.dumps(error.value)).args == error.value.args


def test_what_is_left_out_is_missing(tmp_path):
    compiled = plain(BaggingClassifier(n_estimators=2).fit(X, Y)).fit(X)
    loaded = saved(compiled, tmp_path)
    assert hasattr(compiled, "predict_log_proba")
    assert error_of(AttributeError, getattr, loaded, "predict_log_proba") == (
        "predict_log_proba needs the BaggingClassifier itself, which this "
        "CompiledForest was saved without; use the original model."
    )


def test_what_cannot_be_stored_is_said_before_anything_is_written(tmp_path):
    dates = np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "M8[D]").astype(object)
    model = random_forest(Y)
    model.classes_ = dates
    compiled = plain(model).fit(X)
    assert error_of(
        UnsupportedModelError, skforge.save, compiled, tmp_path / "model.skforge"
    ) == (
        "The classes_ of RandomForestClassifier are not numbers, booleans or strings, "
        "so they cannot be stored; use joblib.dump."
    )
    assert error_of(
        InvalidInputError, skforge.save, model, tmp_path / "model.skforge"
    ) == (
        "model must be a CompiledForest, a CompiledModule or a Forest. "
        "Got RandomForestClassifier instead; pass CompiledForest(model).fit(X) or "
        "compile_forest(model)."
    )
    assert list(tmp_path.iterdir()) == []


def test_histogram_boosting_with_categories(tmp_path):
    random, n = np.random.default_rng(0), 400
    codes = random.integers(0, 5, n)
    rows = pd.DataFrame({"a": random.normal(size=n), "c": codes, "b": codes / 9})
    rows["c"] = pd.Categorical(np.array([*"vwxyz"])[codes])
    model = HistGradientBoostingClassifier(
        max_iter=9, categorical_features="from_dtype"
    )
    model.fit(rows, (codes % 2).astype(bool))
    other = saved(plain(model).fit(rows), tmp_path)
    gap = pd.DataFrame({"a": [0.1, 1], "c": pd.Categorical(["v", None]), "b": [0, 1]})
    found = other.predict({"a": [0.1, 1], "c": ["v", None], "b": [0, 1]})
    np.testing.assert_array_equal(found, model.predict(gap))
    # the encoder takes texts, too
    texts = rows.to_numpy()
    plain_texts = rows.astype({"c": str})
    found = other.predict_proba(plain_texts)
    np.testing.assert_array_equal(found, model.predict_proba(plain_texts))
    for form in (texts, texts[:3].tolist()):
        model.predict(form)
        with pytest.raises(SourceNeededError):
            other.predict(form)


@pytest.mark.parametrize("step", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_models_that_were_files(step, tmp_path):
    sources = set()
    for file in sorted((Path(__file__).parents[1] / "data").glob("*/*"))[::step]:
        if file.suffix == ".skforge":
            continue
        try:
            forest = load_forest(file)
        except (InvalidModelError, UnsupportedModelError):
            continue
        rows = np.random.default_rng(0).normal(size=(20, forest.n_features))
        compiled = CompiledForest(file, schedule=SCHEDULE).fit(rows)
        loaded = saved(compiled, tmp_path)
        for method in ("predict", "predict_proba", "predict_raw", "apply"):
            assert hasattr(loaded, method) == hasattr(compiled, method)
            if hasattr(loaded, method):
                ours, theirs = getattr(loaded, method), getattr(compiled, method)
                assert not difference(ours, theirs, rows), (file, method)
        assert error_of(SourceNeededError, loaded.predict, rows, a=1).startswith(
            "predict with a needs the model file itself"
        )
        sources.add(forest.source)
    assert {"xgboost", "lightgbm", "onnx"} <= sources


# ------------------------------------------------------------ what is kept

PARAMS = [
    {"schedule": SCHEDULE, "n_jobs": 2},
    {"schedule": {(1, 20): SCHEDULE, (21, None): Schedule()}},
    {"schedule": {(1, 20): "xgboost", (21, None): Schedule()}, "verbose": 0},
    {"schedule": "xgboost", "target": Target.host(), "verbose": 1},
    {"batch_sizes": np.array([1, 50]), "random_state": 3, "tuning": "off"},
    {"reduction": "fast", "tuning": "off"},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("params", PARAMS, ids=lambda params: "-".join(params))
def test_parameters_are_kept(params, tmp_path):
    compiled = CompiledForest(random_forest(Y), **params).fit(X)
    loaded = saved(compiled, tmp_path)
    for name, value in compiled.get_params(deep=False).items():
        if name == "batch_sizes" and value is not None:
            assert loaded.batch_sizes == value.tolist()
        elif name != "estimator":
            assert getattr(loaded, name) == value
    assert loaded.schedule_ == compiled.schedule_
    assert loaded.compile_time_ == 0.0  # would differ between equal fits
    assert equal(loaded.predict_proba(X), compiled.predict_proba(X))


def test_of_a_tuner_what_is_plain_data_is_kept(tmp_path):
    class Own:
        name = "own"

        def rounds(self, problem):
            yield Round([])

    few = ScheduleSpace.cpu().with_values(walk=["rows"])
    records = TuningRecords(tmp_path / "records")
    learned = Tuner(Learned("one-shot", iterations=3), ScheduleSpace.cpu_paper())
    halving = Tuner(SuccessiveHalving(4), ScheduleSpace.cpu(), 5.0)
    for tuner, kept in (
        (learned, learned),
        (halving, halving),
        (Tuner(Own(), few, 0.5), Tuner("heuristic", None, 0.5)),
        (Tuner("random", records=records), Tuner("random", records=str(records.path))),
    ):
        assert tuner_in(json.loads(json.dumps(tuner_out(tuner)))) == kept
    assert tuner_out(object()) == "heuristic"
    damaged = tuner_out(Tuner(Learned()))
    for change in (
        {"space": "sea"},
        {"budget": 3},
        {"budget": "three"},
        {"records": 3},
        {"strategy": {"class": "None"}},
        {"strategy": {"class": "Learned", "luck": 1}},
    ):
        (name,) = change
        with pytest.raises(InvalidModelError, match=f"the entry '{name}' of its"):
            tuner_in({**damaged, **change})


def test_a_loaded_model_can_be_compiled_and_saved_again(tmp_path):
    compiled = plain(random_forest(NAMES[Y])).fit(X)
    loaded = saved(compiled, tmp_path)
    first = (tmp_path / "model.skforge").read_bytes()
    assert equal(saved(loaded, tmp_path).predict(X), compiled.predict(X))
    assert (tmp_path / "model.skforge").read_bytes() == first
    again = clone(loaded).set_params(schedule=SCHEDULE).fit(X)
    assert set(again.schedule_.values()) == {SCHEDULE}
    assert equal(again.predict_proba(X), compiled.predict_proba(X))
    assert not hasattr(again, "estimator_")
    assert repr(loaded).startswith(
        "CompiledForest(estimator=<RandomForestClassifier, stored: 4 trees, 6 features>"
    )
    assert "CompiledForest of RandomForestClassifier" in loaded._repr_html_()
    step = make_pipeline(StandardScaler().fit(X), loaded)
    assert equal(step.predict(X), loaded.predict(step[0].transform(X)))


def test_forests_keep_every_field(tmp_path):
    forest = load_forest(random_forest(Y))
    assert {
        f.name
        for f in fields(Forest)
        if isinstance(getattr(forest, f.name), np.ndarray)
    } == set(LAYOUT)
    outputs = replace(forest.outputs, offsets=(0.1, -0.0, 5.0), cutoff=-1e-310)
    forest = replace(
        forest,
        outputs=outputs,
        feature_names=tuple("abcdeß"),
        category_names=((), ("x", "y"), (), (1, 2), (), ()),
        missing_value=-0.0,
        truncate_categories=True,
        class_labels=("a", "b", "c"),
    ).validate()
    loaded = saved(forest, tmp_path)
    assert type(loaded) is Forest
    assert loaded.content_hash() == forest.content_hash()
    assert not loaded.left.flags.writeable


def test_modules_stay_modules(tmp_path):
    forest = load_forest(random_forest(Y))
    module = compile_forest(
        forest, {(0, 9): SCHEDULE, (10, None): Schedule()}, n_jobs=2
    )
    for other in (
        saved(module, tmp_path),
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
    ):
        assert type(other) is CompiledModule
        assert (other.schedules, other.n_jobs) == (module.schedules, 2)
        assert other.target == Target.host()
        for n in (1, 9, 300):
            assert equal(other.predict_raw(X32[:n]), module.predict_raw(X32[:n]))
            assert equal(other.apply(X32[:n]), module.apply(X32[:n]))


# ------------------------------------------------------------ other machines, versions


def test_it_compiles_for_the_cpu_found(tmp_path, monkeypatch):
    compiled = CompiledForest(random_forest(Y)).fit(X)
    module = compile_forest(compiled.forest_)
    states = pickle.dumps(compiled), pickle.dumps(module)
    skforge.save(compiled, tmp_path / "model.skforge")
    host = Target.host()
    other = replace(host, n_cores=host.n_cores + 3)
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: other))
    for found in (pickle.loads(states[0]), skforge.load(tmp_path / "model.skforge")):
        assert found.target_ == other
        assert found.fitted_target_ == host
        assert equal(found.predict(X), compiled.predict(X))
        assert found._predictor.module.target == other
    assert pickle.loads(states[1]).target == other


def test_another_release_warns(tmp_path, monkeypatch):
    compiled = plain(random_forest(Y)).fit(X)
    for module in ("prediction.revived", "persistence.artifact"):
        monkeypatch.setattr(f"skforge.{module}.__version__", "0.0.9")
    state = pickle.dumps(compiled)
    skforge.save(compiled, tmp_path / "model.skforge")
    monkeypatch.undo()
    for noun, verb, load in (
        ("CompiledForest", "Fit", lambda: pickle.loads(state)),
        ("model", "Save", lambda: skforge.load(tmp_path / "model.skforge")),
    ):
        with pytest.warns(InconsistentVersionWarning) as caught:
            loaded = load()
        assert [str(w.message) for w in caught] == [
            f"This {noun} was saved by skforge 0.0.9 and is loaded by "
            f"{skforge.__version__}; identical predictions are promised only for the "
            f"same version. {verb} it again."
        ]
        assert [w.filename for w in caught] == [__file__]
        assert equal(loaded.predict(X), compiled.predict(X))


#: A file and a pickle that skforge 0.1.0 wrote.
OLD = ROOT / "tests" / "data" / "formats"


WRITE = "Write it anew with skforge.convert(old, new), or `skforge convert OLD NEW`."


@pytest.mark.parametrize(
    ("load", "name", "mend"),
    [
        (skforge.load, "0.1.0.skforge", WRITE),
        (skforge.load_forest, "0.1.0.skforge", WRITE),
        (lambda path: pickle.loads(path.read_bytes()), "0.1.0.pkl", "Save the model "),
    ],
    ids=["load", "load_forest", "pickle"],
)
def test_older_formats_name_both_releases(load, name, mend):
    path = OLD / name
    with pytest.raises(UnsupportedModelError) as error:
        load(path)
    what = "The pickle" if path.suffix == ".pkl" else path
    assert str(error.value).startswith(
        f"{what} cannot be loaded: skforge 0.1.0 wrote it in format 1, and skforge "
        f"{skforge.__version__} reads only format 2. {mend}"
    )


@pytest.mark.parametrize("asked", ["forest", "runtime"])
def test_what_pickles_of_other_classes_ask_for_says_so(asked):
    with pytest.raises(
        UnsupportedModelError, match=r"skforge 0\.1\.0 wrote it in format"
    ):
        import_module(f"skforge.compiler.{asked}")


def test_pickles_of_a_later_format_name_both_releases(monkeypatch):
    compiled = plain(random_forest(Y)).fit(X)
    module = compile_forest(compiled.forest_)
    for part in ("forest.forest", "prediction.revived"):
        monkeypatch.setattr(f"skforge.{part}.FORMAT", 3)
        monkeypatch.setattr(f"skforge.{part}.__version__", "0.9.0")
    states = [pickle.dumps(made) for made in (compiled, module, module.forest)]
    unfitted = pickle.dumps(plain(random_forest(Y)))
    monkeypatch.undo()
    for state in states:
        assert error_of(UnsupportedModelError, pickle.loads, state) == (
            "The pickle of a Forest cannot be loaded: skforge 0.9.0 wrote it in format "
            f"3, and skforge {skforge.__version__} reads only format 2. Update skforge."
        )
    with pytest.warns(InconsistentVersionWarning, match=r"saved by skforge 0\.9\.0"):
        pickle.loads(unfitted)  # parameters only


def keys_of(value):
    """Return the paths of all entries, without what depends on libraries."""
    if not isinstance(value, dict):
        return set()
    free = ("attributes", "rules", "tags", "twins", "fitted_target_", "arrays")
    inside = {
        f"{key}.{path}"
        for key, item in value.items()
        if key not in free
        for path in keys_of(item)
    }
    return set(value) | inside


@pytest.mark.usefixtures("compared")
def test_what_files_hold_changes_with_the_format_alone(tmp_path):
    """If it fails: raise FORMAT, if no release has this one, and store the names."""
    forest = random_forest(Y)
    fast = CompiledForest(make_pipeline(StandardScaler(), forest).fit(X, Y)).fit(X)
    found = {f.name for kind in (Forest, OutputSpec) for f in fields(kind)}
    found |= set(vars(fast.drop_estimator()))
    for made in (fast, compile_forest(forest)):
        skforge.save(made, tmp_path / "a.skforge")
        found |= keys_of(manifest_of((tmp_path / "a.skforge").read_bytes()))
    known = json.loads((OLD / "format.json").read_text("utf-8"))
    assert {"format": FORMAT, "names": sorted(found)} == known


#: Saves models and prints digests; sets and dicts may not decide the order of bytes.
SAVES = """
import hashlib, os, sys
import numpy as np, pandas as pd, skforge
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
random = np.random.default_rng(0)
X = pd.DataFrame({"a": random.random(200), "b": random.choice(["x", "y", "z"], 200)})
Y = random.integers(0, 3, 200)
encoded = make_column_transformer((OneHotEncoder(), ["b"]), remainder="passthrough")
forest = RandomForestClassifier(4, random_state=0)
second = RandomForestClassifier(2, random_state=1)
vote = VotingClassifier([("a", forest), ("b", second)])
boosted = HistGradientBoostingRegressor(max_iter=3, categorical_features="from_dtype")
for model, rows in (
    (make_pipeline(encoded, StandardScaler(), forest), X),
    (vote, X[["a"]]),
    (boosted, X.astype({"b": "category"})),
):
    how = {"tuning": "off"} if model is vote else {"schedule": skforge.Schedule()}
    os.environ["SKFORGE_CHECK"] = "off" if model in (vote, boosted) else ""
    skforge.save(skforge.CompiledForest(model, **how).fit(rows, Y), sys.argv[1])
    print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())
"""


@pytest.mark.usefixtures("compared")
def test_equal_fits_save_equal_bytes(tmp_path, monkeypatch, capsys):
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than here
    ran = run_python(SAVES, tmp_path / "a.skforge", PYTHONHASHSEED=seed)
    assert len(ran.split()) == 3
    monkeypatch.setattr(sys, "argv", ["-c", tmp_path / "b.skforge"])
    exec(SAVES, {})
    assert capsys.readouterr().out == ran


def piped(payload):
    """Return the reading end of a pipe, which cannot seek."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "wb") as file:
        file.write(payload)
    return os.fdopen(reads, "rb")


def test_files_and_bytes_hold_what_paths_do(tmp_path):
    compiled = plain(DecisionTreeClassifier(max_depth=2).fit(X, Y)).fit(X)
    path = tmp_path / "a.skforge"
    skforge.save(compiled, path)
    payload, buffer, zipped = path.read_bytes(), io.BytesIO(), tmp_path / "a.gz"
    skforge.save(compiled, buffer)
    with gzip.open(zipped, "wb") as file:
        skforge.save(compiled, file)
    with (tmp_path / "raw").open("wb", buffering=0) as file:
        file.write(b"head")
        skforge.save(compiled, file)
        assert not file.closed
    assert buffer.getvalue() == gzip.decompress(zipped.read_bytes()) == payload
    with (tmp_path / "raw").open("rb") as file, gzip.open(zipped, "rb") as unzipped:
        assert file.read(4) == b"head"
        for given in (
            payload,
            bytearray(payload),
            memoryview(payload),
            io.BytesIO(payload),
            file,
            unzipped,
            piped(payload),
        ):
            loaded = skforge.load(given)
            assert equal(loaded.predict_proba(X), compiled.predict_proba(X))
        with pytest.raises(InvalidModelError, match="has nothing left to read"):
            skforge.load(file)


FILE = "a file open in binary mode, such as open(path, "
READ = f"pass the path of a .skforge file, its bytes, or {FILE}'rb'). Got "


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: {"model": 1}, f"{READ}dict instead."),
        (lambda: io.TextIOWrapper(io.BytesIO()), f"{READ}TextIOWrapper instead."),
        (lambda: io.StringIO("PK"), f"{READ}StringIO instead."),
        (lambda: b"", "This bytes object is empty; it holds no model."),
        (lambda: io.BytesIO(b""), "This BytesIO has nothing left to read; call its"),
        (lambda: pickle.dumps(1), "This bytes object is a pickle, not a .skforge file"),
        (lambda: b"PK\x03\x04", "This bytes object cannot be loaded: it is damaged"),
        (lambda: closed(io.BytesIO()), "This BytesIO cannot be read: I/O operation on"),
        (
            lambda: io.FileIO(os.devnull, "w"),
            "This FileIO cannot be read: File not open",
        ),
    ],
)
def test_what_load_does_not_take_is_named(given, said):
    with pytest.raises((InvalidInputError, InvalidModelError)) as error:
        skforge.load(given())
    assert str(error.value).startswith(said)
    assert type(error.value) is (
        InvalidInputError if READ in said else InvalidModelError
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: 3, f"pass a path or {FILE}'wb'). Got int instead."),
        (lambda: io.StringIO(), f"pass a path or {FILE}'wb'). Got StringIO instead."),
        (lambda: closed(io.BytesIO()), "This BytesIO cannot be written: I/O operation"),
        (lambda: io.FileIO(os.devnull), "This FileIO cannot be written: File not open"),
    ],
)
def test_what_save_does_not_take_is_named(given, said):
    forest = load_forest(DecisionTreeClassifier(max_depth=1).fit(X, Y))
    assert error_of(InvalidInputError, skforge.save, forest, given()).startswith(said)


def closed(file):
    file.close()
    return file


MISTAKES = {
    "None": (
        None,
        "rows are None; pass an array or a data frame of shape (n_rows, 4).",
    ),
    "dict": (
        {"a": [1.0]},
        "the rows are mappings, but the model was trained without feature names; pass "
        "an array, or train the model on a DataFrame.",
    ),
    "text": (
        np.array([[1.0, 2.0, 3.0, "red"]], object),
        "row 0 has 'red' in column 3; encode texts, dates and categories as numbers "
        "the way the model was trained.",
    ),
    "one row": (
        np.ones(4),
        "rows must be two-dimensional, with one row per sample. Got shape (4,) "
        "instead. Use X.reshape(1, -1) for one row.",
    ),
}


@pytest.fixture(scope="module")
def without_source(tmp_path_factory):
    """Return models whose source cannot say what is wrong with rows."""
    file = tmp_path_factory.mktemp("models") / "model.json"
    model = xgb.XGBRegressor(n_estimators=2).fit(np.eye(9, 4), np.arange(9))
    model.save_model(file)
    of_file = plain(file).fit(np.eye(9, 4))
    live = plain(model).fit(np.eye(9, 4))
    return live.drop_estimator(), of_file, of_file.drop_estimator()


@pytest.mark.parametrize("name", MISTAKES)
def test_an_artifact_names_the_mistake_in_rows(name, without_source):
    rows, text = MISTAKES[name]
    for found in without_source:
        for method in ("predict", "predict_raw", "apply"):
            with pytest.raises(InvalidInputError) as error:
                getattr(found, method)(rows)
            assert str(error.value) == text


def test_text_and_dates_in_a_frame_are_named_by_column():
    model = xgb.XGBRegressor(n_estimators=2).fit(np.eye(9, 2), np.arange(9))
    stored = plain(model).fit(np.eye(9, 2)).drop_estimator()
    module = compile_forest(load_forest(model))
    mend = (
        "encode texts, dates and categories as numbers the way the model was trained."
    )
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, "red"]})
    dates = pd.DataFrame({"a": pd.to_datetime(["2024-01-02"]), "b": [1.0]})
    no_numbers = "which is not plain numbers; convert it to float64."
    for rows, text, of_column in (
        (frame, f"row 1 has 'red' in column 'b'; {mend}", "'b' has the dtype object"),
        (
            dates,
            f"row 0 has 2024-01-02 00:00:00 in column 'a'; {mend}",
            f"'a' has the dtype {dates['a'].dtype}",
        ),
    ):
        for call, said in (
            (stored.predict, text),
            (module.predict, f"column {of_column}, {no_numbers}"),
        ):
            assert error_of(InvalidInputError, call, rows) == said


def test_no_addresses_in_any_state(fitted):
    compiled = fitted("forest of three names")
    compiled.predict(X32[:1])
    for model in (compiled, compiled.drop_estimator(), compiled._predictor.module):
        state = pickle.dumps(model)
        modules = re.findall(rb"[a-z_]+(?:\.[a-z_]+)+", state)
        assert not [name for name in modules if b"ctypes" in name or b"llvm" in name]
        assert not [name for name in modules if b"backends" in name]
        assert pickle.dumps(pickle.loads(state)) == pickle.dumps(pickle.loads(state))


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle 2": lambda model: pickle.loads(pickle.dumps(model, 2)),
    "cloudpickle": lambda model: pickle.loads(dumps(model)),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies(how, fitted):
    compiled = fitted("forest of three names")
    kind = MODELS["forest of three names"]
    trained = COPIES[how](CompiledForest(kind.model, schedule=SCHEDULE))
    trained.fit(ROWS[kind.on], TARGETS[kind.y])
    forest = COPIES[how](compiled.forest_)
    assert forest.content_hash() == compiled.forest_.content_hash()
    assert not forest.left.flags.writeable
    for model in (compiled, compiled.drop_estimator(), trained):
        found = COPIES[how](model)
        assert "_predictor" not in vars(found)
        assert equal(found.predict(X), compiled.predict(X))
        own = {"_predictor", "_fingerprint"}  # made where the copy is used
        assert "_predictor" in vars(found)
        assert vars(found).keys() | own == vars(model).keys() | own


def test_joblib_files_can_be_mapped(fitted, tmp_path):
    compiled = fitted("forest of three names")
    for compress in (0, 3):
        path = tmp_path / f"model{compress}.joblib"
        joblib.dump(compiled, path, compress=compress)
        mode = None if compress else "r"
        found = joblib.load(path, mmap_mode=mode)
        assert equal(found.predict(X), compiled.predict(X))


# ------------------------------------------------------------ without the sources

WITHOUT = """
import sys
banned = {"xgboost", "lightgbm", "onnx", "pandas", "shap"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in banned:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import joblib, numpy as np, skforge
rows = np.load("rows.npy")
for name in sys.argv[1:]:
    load = skforge.load if name.endswith(".skforge") else joblib.load
    model = load(name)
    for method in ("predict_proba", "predict_contribs"):
        np.save(f"{name}.{method}.npy", getattr(model, method)(rows))
    print(banned & {*sys.modules}, "sklearn.ensemble" in sys.modules)
"""


def test_models_load_where_no_source_is_installed(fitted, tmp_path):
    np.save(tmp_path / "rows.npy", X32)
    files = {}
    for name in ("xgboost of three", "lightgbm of names", "forest of three names"):
        files |= {f"{name}.skforge": name, f"{name}.joblib": name}
        skforge.save(fitted(name), tmp_path / f"{name}.skforge")
        joblib.dump(fitted(name).drop_estimator(), tmp_path / f"{name}.joblib")
    said = run_python(WITHOUT, *sorted(files, reverse=True), cwd=tmp_path)
    assert said == "set() False\n" * len(files)
    for (file, name), method in itertools.product(
        files.items(), ("predict_proba", "predict_contribs")
    ):
        found = np.load(tmp_path / f"{file}.{method}.npy")
        assert equal(found, getattr(fitted(name), method)(X32))


# ------------------------------------------------------------ damage


def small_file(tmp_path):
    rows = X32[:20, :2]
    tree = DecisionTreeClassifier(max_depth=2).fit(rows, NAMES[Y[:20]])
    path = tmp_path / "small.skforge"
    skforge.save(CompiledForest(tree).fit(rows), path)
    assert equal(skforge.load(path).predict(rows), tree.predict(rows))
    return path


def wrapper_file(tmp_path):
    rows, tree = X32[:60, :2].astype(float), DecisionTreeClassifier(max_depth=1)
    inside = CalibratedClassifierCV(make_pipeline(StandardScaler(), tree), cv=2)
    model = VotingClassifier([("a", inside)], voting="soft", weights=[2])
    skforge.save(
        plain(model.fit(rows, NAMES[Y[:60]])).fit(rows), tmp_path / "w.skforge"
    )
    return tmp_path / "w.skforge"


@pytest.mark.parametrize(
    ("made", "step"),
    [
        (small_file, 7),
        (wrapper_file, 59),
        pytest.param(small_file, 1, marks=pytest.mark.slow),
        pytest.param(wrapper_file, 1, marks=pytest.mark.slow),
    ],
)
def test_wrong_types_in_the_manifest_are_refused_or_harmless(made, step, tmp_path):
    path = made(tmp_path)
    whole = path.read_bytes()
    found = [place for place in places(manifest_of(whole)) if place[0] != "arrays"]
    tried = refused = 0
    every = itertools.product(found, (None, -1, "x", [[]], {}, NOTHING))
    for place, wrong in itertools.islice(every, 0, None, step):
        path.write_bytes(changed(whole, partial(put, place=place, value=wrong)))
        tried += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of another version
                model = skforge.load(path)
        except (InvalidModelError, UnsupportedModelError):
            refused += 1
            continue
        # a text or a number of another value: as if it had been saved with it
        assert isinstance(model, CompiledForest), (place, wrong)
        assert model.forest_.n_trees in (1, 2)
    assert refused > 0.55 * tried  # texts of what was compared may be any


@pytest.mark.parametrize(
    "name", ["forest of three names", "two targets", "gb of names"]
)
def test_labels_that_are_not_the_forests_are_refused(name, fitted, tmp_path):
    path = tmp_path / "model.skforge"
    if name == "two targets":
        two = CompiledForest(random_forest(np.c_[Y, Y > 0]), schedule=SCHEDULE).fit(X)
    model = (two if name == "two targets" else fitted(name)).drop_estimator()
    kept = model.estimator.attributes
    right = kept["classes_"]
    if isinstance(right, list):
        wrong = [right[0], right[:1], [*right, right[0]], [right[0], right[0]]]
    else:
        wrong = [right[:, np.newaxis], "oak", 3, [right], [1, 2, 3]]
        wrong += [right[:1]] * (name != "gb of names")  # there are models of one class
    for labels in wrong:
        kept["classes_"] = labels
        skforge.save(model, path)
        assert error_of(InvalidModelError, skforge.load, path) == (
            f"{path} cannot be loaded: the entry 'model' of its manifest has a value "
            "that save never writes; save the model again."
        )
    kept["classes_"] = right
    skforge.save(model, path)
    assert equal(skforge.load(path).predict(X), model.predict(X))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "answer",
    [[], ["<f4"], {}, ["<f4", [0], 0], ["<f4", [1]], ["<f4", [0, -1]], ["a, b", [0]]],
)
def test_answers_to_no_rows_that_are_none_are_refused(answer, fitted, tmp_path):
    path = tmp_path / "model.skforge"
    skforge.save(fitted("xgboost of values"), path)
    place = "estimator", "model", "of_no_rows", 0
    wrong = partial(put, place=place, value=["predict", answer])
    path.write_bytes(changed(path.read_bytes(), wrong))
    with pytest.raises(InvalidModelError):
        skforge.load(path)


def test_forged_trees_are_refused(tmp_path):
    forest = load_forest(random_forest(Y))
    left = forest.left.copy()
    left[0] = 10_000_000
    bad = replace(forest, left=left)
    skforge.save(bad, tmp_path / "bad.skforge")
    assert error_of(InvalidModelError, skforge.load, tmp_path / "bad.skforge") == (
        f"{tmp_path / 'bad.skforge'} cannot be loaded: left[0] = 10000000 in tree 0 is "
        f"outside -1..{forest.n_nodes - 1}; the model is damaged, export it again."
    )
    state = pickle.dumps(compile_forest(forest)).replace(
        forest.left.tobytes(), left.tobytes()
    )
    with pytest.raises(InvalidModelError):
        pickle.loads(state)


def test_errors_of_saving_name_the_path_asked_for(fitted, tmp_path):
    path = tmp_path / "missing" / "model.skforge"
    with pytest.raises(FileNotFoundError) as error:
        skforge.save(fitted("forest of two"), path)
    assert error.value.filename == str(path)


@pytest.fixture(scope="module")
def declining(tmp_path_factory):
    """Return models, compiled, with frames that they know, and loaded from a file."""
    cb = pytest.importorskip("catboost")
    frame = pd.DataFrame(X[:, :3], columns=["age", "fare", "tax"])
    texts = frame.assign(city=np.where(Y > 0, "Oslo", "Rome"))
    quiet = {"iterations": 2, "verbose": 0, "allow_writing_files": False}

    def pipeline(last):
        steps = (StandardScaler(), [*frame]), (OneHotEncoder(), ["city"])
        return make_pipeline(make_column_transformer(*steps), last)

    models = {
        "pipeline": (pipeline(RandomForestClassifier(2)), texts),
        "wrapper": (
            FixedThresholdClassifier(pipeline(xgb.XGBClassifier(n_estimators=2))),
            texts,
        ),
        "plain wrapper": (CalibratedClassifierCV(RandomForestClassifier(2)), frame),
        "xgboost": (xgb.XGBClassifier(n_estimators=2), frame),
        "catboost": (cb.CatBoostClassifier(**quiet), frame),
    }
    made = {}
    for name, (model, rows) in models.items():
        fast = plain(model.fit(rows, Y > 0)).fit(rows)
        loaded = saved(fast, tmp_path_factory.mktemp(name.replace(" ", "-")))
        made[name] = model, fast, rows, loaded
    return made


def with_one(frame, name, value, at=3):
    column = frame[name].astype(object)
    column.iloc[at] = value
    return frame.assign(**{name: column})


NEEDS = "SourceNeededError: predict of these rows (DataFrame of shape (300, 4)) needs "
SAVED = "itself, which this CompiledForest was saved without: "
DECLINED = {
    "absent": (
        lambda f: f.rename(columns={"fare": "Fare"}),
        "InvalidInputError: the rows have no column 'fare'; the column nearest to "
        "'fare' is 'Fare'. Give every column of the model, with NaN where values are "
        "missing.",
    ),
    "a text": (
        lambda f: with_one(f, "fare", "x"),
        f"{NEEDS}the {{model}} {SAVED}row 3 has 'x' in column 'fare' (object); alone, "
        "it takes numbers there; use the original model.",
    ),
    "a date": (
        lambda f: with_one(f, "fare", datetime.date(2020, 1, 1)),
        f"{NEEDS}the {{model}} {SAVED}row 3 has datetime.date(2020, 1, 1) in column "
        "'fare' (object); alone, it takes numbers there; use the original model.",
    ),
    "a number for a text": (
        lambda f: f.assign(city=1),
        f"{NEEDS}the {{model}} {SAVED}row 0 has 1 in column 'city' (int64); training "
        "rows had texts there; use the original model.",
    ),
    "another text": (
        lambda f: with_one(f, "city", "Bern"),
        f"{NEEDS}the {{model}} {SAVED}row 3 has 'Bern' in column 'city' (object), a "
        "text that training rows did not have; use the original model.",
    ),
    "infinity": (
        lambda f: f.assign(fare=np.where(f.index == 7, np.inf, f.fare)),
        f"{NEEDS}the {{model}} {SAVED}row 7 has inf in column 'fare' (float64); alone, "
        "it takes finite numbers there; use the original model.",
    ),
    "float16": (
        lambda f: f.astype({"fare": "float16", "tax": "float16"}),
        f"{NEEDS}the {{model}} {SAVED}columns 'fare' is float16, 'tax' is float16. "
        "Convert with X.astype({{'fare': 'float64', 'tax': 'float64'}}), predict such "
        "rows once before you save, or use the original model.",
    ),
    "polars": (
        lambda f: pytest.importorskip("polars").from_pandas(f),
        f"{NEEDS}the {{model}} {SAVED}X is a DataFrame of polars. Convert with "
        "X.to_pandas(), predict such rows once before you save, or use the original "
        "model.",
    ),
    "texts of numbers": (
        lambda f: f.assign(fare=f.fare.astype(str).astype(object)),
        f"{NEEDS}the {{model}} {SAVED}column 'fare' is object of str. Convert with "
        "X.astype({{'fare': 'float64'}}), or use the original model.",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
@pytest.mark.parametrize("name", ["pipeline", "wrapper"])
def test_a_loaded_pipeline_says_what_is_wrong_with_rows(
    name, case, declining, tmp_path
):
    model, fast, frame, loaded = declining[name]
    make, text = DECLINED[case]
    rows = make(frame)
    with pytest.raises(ValueError) as error:
        loaded.predict(rows)
    expected = text.format(model=type(model).__name__)
    assert f"{type(error.value).__name__}: {error.value}" == expected
    if "Invalid" in text:
        with pytest.raises((TypeError, ValueError)):
            model.predict(rows)
    if "Convert with" in text:  # with the answers of the converted rows
        call = re.search(r"Convert with (X\.\w+\(.*?\)),", expected).group(1)
        answers = loaded.predict(eval(call, {"X": rows}))
        np.testing.assert_array_equal(answers, model.predict(rows))
    if "once before" in text:
        fast.predict(rows)
        answers = saved(fast, tmp_path).predict(rows)
        np.testing.assert_array_equal(answers, model.predict(rows))


@pytest.mark.filterwarnings("ignore")  # XGBoost's of lazy frames
def test_rows_that_the_live_pipeline_answers_are_not_blamed(tmp_path):
    rows = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(
        c=np.where(Y > 0, "x", "y")
    )
    marks = (MissingIndicator(features="all"), ["c"]), (StandardScaler(), ["a", "b"])
    marker = make_pipeline(make_column_transformer(*marks), RandomForestClassifier(2))
    by_place = (StandardScaler(), [0, 1]), (OneHotEncoder(), [2])
    encoder = make_pipeline(
        make_column_transformer(*by_place), RandomForestClassifier(2)
    )
    scaled = make_pipeline(StandardScaler(), RandomForestClassifier(2))
    alone = make_pipeline(lgb.LGBMClassifier(n_estimators=2, verbose=-1))
    same = FunctionTransformer(feature_names_out="one-to-one")
    renames = make_pipeline(same, RandomForestClassifier(2))
    pl = pytest.importorskip("polars")
    collects = make_pipeline(xgb.XGBClassifier(n_estimators=2))
    for model, trained, given in (
        (marker, rows, rows),
        (scaled, rows[["a"]], rows[["a"]].set_axis([0], axis=1)),
        (alone, X[:, :2], rows[["a", "b"]]),
        (renames, rows[["a", "b"]], rows[["b", "a"]]),
        (encoder, rows.to_numpy(object), rows.to_numpy(object)),
        (collects, X[:, :1], pl.LazyFrame({"a": X[:, 0]})),
    ):
        loaded = saved(plain(model.fit(trained, Y > 0)).fit(trained), tmp_path)
        expected = model.predict(given)
        try:
            answers = loaded.predict(given)
        except SourceNeededError:
            continue
        np.testing.assert_array_equal(answers, expected)


ODD = {
    "text": lambda f: with_one(f, "fare", "x"),
    "infinity": lambda f: f.assign(fare=np.inf),
    "object": lambda f: f.astype(object),
    "Arrow": lambda f: f.assign(fare=pd.array([1.0, None] * 150, "double[pyarrow]")),
    "flags": lambda f: f.assign(fare=pd.array([True, None] * 150, "boolean")),
    "extra": lambda f: f.assign(more=1.0)[["more", *f]],
    "wide": lambda f: np.c_[f, f],
    "list": lambda f: np.c_[f, f].tolist(),
    "one row": lambda f: f.to_numpy()[0],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["plain wrapper", "xgboost", "catboost"])
@pytest.mark.parametrize("kind", ODD)
def test_an_error_is_of_the_rows_only_if_the_model_refuses_them(name, kind, declining):
    model, fast, frame, loaded = declining[name]
    rows = ODD[kind](frame)
    try:
        expected = model.predict(rows)
    except Exception:  # noqa: BLE001 - CatBoost's are of no common class
        for one in (fast, loaded):
            with pytest.raises(Exception) as error:
                one.predict(rows)
            assert "Stack trace" not in str(error.value)
        return
    np.testing.assert_array_equal(fast.predict(rows), expected)
    try:
        np.testing.assert_array_equal(loaded.predict(rows), expected)
    except SourceNeededError as error:
        assert (name, kind) in {("plain wrapper", "object"), ("catboost", "one row")}, (
            error
        )


def test_catboost_without_names_takes_further_columns(tmp_path):
    cb = pytest.importorskip("catboost")
    model = cb.CatBoostClassifier(iterations=2, verbose=0, allow_writing_files=False)
    model.fit(X, Y)
    fast = plain(model).fit(X)
    loaded, wide = saved(fast, tmp_path), np.c_[X, X]
    for rows in (wide, wide.tolist(), pd.DataFrame(wide), wide.astype("f4")):
        for one in (fast, loaded):
            np.testing.assert_array_equal(one.predict(rows), model.predict(rows))
    with pytest.raises(SourceNeededError, match=r"Use X.reshape\(1, -1\), or use the"):
        loaded.predict(X[0])
    np.testing.assert_array_equal(fast.predict(X[0]), model.predict(X[0]))
