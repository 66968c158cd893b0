"""CatBoost models with categories: the same bits as CatBoost, for rows of all kinds."""

from __future__ import annotations

import json
import pickle
import struct
import sys
import zlib

import joblib
import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import skforge
from skforge import compile_forest
from skforge.engine import hashing
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    SourceNeededError,
    UnsupportedModelError,
)
from skforge.forest.categories import ABOVE, EQUAL, HASH, MULTIPLIER
from skforge.forest.encoder_tables import SIZES, _pairs_of, tables_of
from skforge.forest.record import forest_in, forest_out
from skforge.frontends import load_forest
from skforge.frontends.catboost import ctr
from skforge.frontends.catboost.cbm import read_cbm
from skforge.prediction import blocks
from skforge.rows import hashed_rows
from tests import random_categories
from tests.comparing import saved
from tests.plain import plain
from tests.programs import command, run_python
from tests.sklearn_rows import same_bits

cb = pytest.importorskip("catboost")
pd = pytest.importorskip("pandas")

QUIET = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
CATEGORIES = ["city", "code", "flag"]
POLICIES = ("SymmetricTree", "Lossguide", "Depthwise")


def make_frame(n=600, seed=0):
    """Rows with texts, whole numbers as categories, and numbers that may be missing."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "city": random.choice([f"città {i}" for i in range(30)], n).astype(object),
            "size": np.where(random.random(n) < 0.1, np.nan, random.normal(size=n)),
            "code": random.integers(-3, 9, n),
            "age": random.integers(18, 90, n),
            "flag": random.choice(["yes", "no"], n).astype(object),
        }
    )
    signal = pd.factorize(frame["city"])[0] % 5 + np.nan_to_num(frame["size"])
    signal += (frame["code"] == 2) * (frame["flag"] == "yes") * 3
    return frame, signal + 0.3 * random.normal(size=n)


def train(kind="Regressor", frame=None, y=None, **params):
    if frame is None:
        frame, y = make_frame()
    params = {"iterations": 15, "depth": 4, "cat_features": CATEGORIES, **params}
    return getattr(cb, f"CatBoost{kind}")(**{**QUIET, **params}).fit(frame, y)


def new_rows(frame, seed=1):
    """Rows with new categories, new combinations and numbers beside those of others."""
    random = np.random.default_rng(seed)
    rows = frame.copy()
    for name in rows:
        shuffled = random.random(len(rows)) < 0.3
        rows[name] = np.where(shuffled, random.permutation(rows[name]), rows[name])
    for name in CATEGORIES:
        new = random.random(len(rows)) < 0.1
        texts = np.array([f"new {i}" * (i % 9) for i in range(len(rows))], object)
        rows[name] = np.where(new, texts, rows[name].to_numpy(object))
    rows["age"] = rows["age"].astype(float)
    rows.loc[::17, "age"] = np.nan
    return rows


def raw_of(model, rows):
    raw = cb.CatBoost.predict(model, rows, prediction_type="RawFormulaVal")
    return np.asarray(raw).reshape(len(rows), -1)


def check(model, frame, fast=None):
    """Compare all answers of a compiled model with CatBoost's, also for new rows."""
    fast = plain(model).fit(frame) if fast is None else fast
    for rows in (frame, new_rows(frame), frame[:1]):
        for given in (rows, rows.to_numpy(object)):
            before = fast.counters()
            same_bits(
                fast.predict_raw(given).reshape(len(rows), -1), raw_of(model, rows)
            )
            for method in ("predict", "predict_proba"):
                assert hasattr(fast, method) == hasattr(model, method)
                if hasattr(model, method):
                    expected = getattr(model, method)(rows)
                    same_bits(getattr(fast, method)(given), expected)
            assert fast.counters()["library"] == before["library"]
    return fast


# ------------------------------------------------------------ hashes


def hashes_of(values):
    rows = np.zeros((len(values), 1), np.float32)
    objects = np.empty((len(values), 1), object)
    objects[:, 0] = values
    flags, places = np.ones(1, np.bool_), np.zeros(1, np.int32)
    assert hashing.read_objects(objects, flags, places, rows)
    return rows.view(np.uint32)[:, 0].tolist()


#: The last 32 bits of CityHash64 (release 1.0) of texts of up to 16 bytes.
SHORT = {
    **{"": 0x2F90404F, "a": 0xD003ACFA, "ab": 0xF3CC3F3E, "abc": 0x3A4ECE31},
    **{"é": 0x1BE5E9F4, "x" * 9: 0xF5B076B5, "twelve bytes": 0x44CBA224},
    "0123456789abcdef": 0x9DAC3317,
}


def test_short_texts_have_the_hash_of_their_bytes():
    assert hashes_of([*SHORT]) == [*SHORT.values()]


def test_long_texts_have_known_hashes():
    # of CatBoost 1.2.10: values of one-hot features that were trained on these texts
    texts = [("abcdefghij" * 30)[:n] for n in (17, 32, 33, 64, 65, 127, 128, 129, 300)]
    frame = pd.DataFrame({"text": texts * 20})
    y = np.tile(np.arange(len(texts), dtype=float), 20)
    how = {"cat_features": ["text"], "one_hot_max_size": 255, "learning_rate": 1.0}
    model = train(frame=frame, y=y, iterations=40, depth=6, **how)
    rows = pd.DataFrame({"text": [*texts, *(text + "!" for text in texts)]})
    assert len(load_forest(model).hashed.key) > 5
    raw = compile_forest(load_forest(model)).predict_raw(rows)
    same_bits(raw, raw_of(model, rows)[:, 0])


def test_whole_numbers_are_their_digits():
    numbers = [0, 7, -7, 10, -10, 2**63 - 1, -(2**63), True, False]
    assert hashes_of([np.str_("a"), np.str_("é" * 40)]) == hashes_of(["a", "é" * 40])
    texts = [str(int(number)) for number in numbers]
    assert hashes_of(numbers) == hashes_of(texts)


# ------------------------------------------------------------ answers

LOSSES = {
    "RMSE": ("Regressor", None),
    "RMSEWithUncertainty": ("Regressor", None),
    "MultiRMSE": ("Regressor", lambda y: np.stack([y, -(y**2)], 1)),
    "Logloss": ("Classifier", lambda y: np.array(["low", "high"])[(y > 2).astype(int)]),
    "MultiClass": ("Classifier", lambda y: np.digitize(y, [1, 2, 3])),
    "MultiClassOneVsAll": ("Classifier", lambda y: np.digitize(y, [1, 3])),
    "MultiLogloss": ("Classifier", lambda y: np.stack([y > 1, y > 3], 1).astype(int)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_from_models_files_and_plain_data(loss, tmp_path):
    kind, target = LOSSES[loss]
    frame, y = make_frame()
    y = y if target is None else target(y)
    model = train(kind, frame, y, loss_function=loss, max_ctr_complexity=2)
    fast = check(model, frame)
    model.save_model(tmp_path / "m.cbm")
    forest = load_forest(tmp_path / "m.cbm")
    raw = compile_forest(forest).predict_raw(frame)
    same_bits(raw.reshape(len(frame), -1), raw_of(model, frame))
    pool = cb.Pool(frame, y, CATEGORIES)
    model.save_model(tmp_path / "m.json", format="json", pool=pool)
    if loss.startswith("Multi") and "Class" not in loss:
        with pytest.raises(UnsupportedModelError, match=r"save the model as \.cbm"):
            load_forest(tmp_path / "m.json")
    else:
        raw = compile_forest(tmp_path / "m.json").predict_raw(new_rows(frame))
        wanted = raw_of(model, new_rows(frame))
        np.testing.assert_array_equal(raw.reshape(wanted.shape), wanted)
    check(model, frame, pickle.loads(pickle.dumps(fast)))
    check(model, frame, saved(fast, tmp_path))


def test_small_calls_of_a_compiled_module_read_objects(monkeypatch):
    frame, y = make_frame()
    model = train(frame=frame, y=y)
    module, rows = compile_forest(model).warm_up([1, 8]), new_rows(frame)[:8]
    objects = rows.to_numpy(object)
    module.predict_raw(objects)
    numbers = np.zeros((8, module.forest.n_features), np.float32)
    with pytest.raises(InvalidInputError, match="columns"):
        module.predict_raw(numbers)  # which a user's rows are not
    for given in (rows, objects.tolist()):
        same_bits(module.predict_raw(given), raw_of(model, rows)[:, 0])
    monkeypatch.setattr(hashed_rows.HashedRows, "rows", None)  # no further call
    for given in (objects, objects[:1], objects[::2]):
        wanted = raw_of(model, pd.DataFrame(given, columns=rows.columns))[:, 0]
        same_bits(module.predict_raw(given), wanted)


CTRS = ("Borders", "Buckets", "BinarizedTargetMeanValue", "Counter")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", CTRS)
def test_each_statistic_in_trees_of_each_shape(kind, policy):
    frame, y = make_frame()
    model = train(
        frame=frame,
        y=y,
        simple_ctr=[f"{kind}:Prior=0.3/1:CtrBorderCount=20"],
        combinations_ctr=[f"{kind}:Prior=0/1", "Counter"],
        one_hot_max_size=3,
        max_ctr_complexity=3,
        grow_policy=policy,
        nan_mode="Max" if kind == "Counter" else "Min",
    )
    assert len(load_forest(model).hashed.key)
    check(model, frame)


def test_models_with_one_kind_of_test_alone():
    frame, y = make_frame()
    for params in (
        {"one_hot_max_size": 255},
        {"one_hot_max_size": 1, "max_ctr_complexity": 1},
        {"ignored_features": ["size", "age"]},
        {"ignored_features": CATEGORIES},
    ):
        check(train(frame=frame, y=y, **params), frame)


def test_more_borders_than_a_byte_counts():
    frame, y = make_frame(3000)
    random = np.random.default_rng(0)
    frame["city"] = [f"c{i}" for i in random.integers(0, 900, len(frame))]
    y = y + pd.factorize(frame["city"])[0] % 97
    borders = ["BinarizedTargetMeanValue:CtrBorderCount=255:TargetBorderCount=20"]
    how = {"iterations": 300, "depth": 6, "one_hot_max_size": 1}
    model = train(frame=frame, y=y, simple_ctr=borders, **how)
    check(model, frame)
    # CatBoost trains up to 255 borders: cut the limit, so that several columns appear
    before = load_forest(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctr, "MOST_BORDERS", 5)
        cut = load_forest(model)
    assert cut.n_features > before.n_features
    rows = new_rows(frame)
    same_bits(compile_forest(cut).predict_raw(rows), raw_of(model, rows)[:, 0])


def test_json_with_several_binarizations_of_the_target(tmp_path):
    frame, y = make_frame()
    several = ["Borders:TargetBorderCount=3", "Borders:TargetBorderCount=1"]
    model = train(frame=frame, y=y, simple_ctr=several, one_hot_max_size=1)
    check(model, frame)
    pool = cb.Pool(frame, y, CATEGORIES)
    model.save_model(tmp_path / "m.json", format="json", pool=pool)
    with pytest.raises(UnsupportedModelError, match=r"save the model as \.cbm"):
        load_forest(tmp_path / "m.json")


def test_statistics_that_rise_together_share_a_column():
    random = np.random.default_rng(0)
    one = np.sort(random.integers(0, 6, 40))
    two = np.sort(random.integers(0, 9, 40))
    other = random.integers(0, 4, 40)
    bucket = np.stack([one, other, two], 1).astype(np.uint8)
    chains = ctr._chained(np.arange(39, dtype=np.uint64), bucket)
    assert chains.column == [0, 1, 0]
    places = zip(bucket.T, chains.column, chains.last, strict=True)
    for statistic, column, last in places:
        for borders in range(10):
            above = chains.code[:, column].astype(int) > last[borders]
            np.testing.assert_array_equal(above, statistic > borders)


def test_some_of_the_trees():
    frame, y = make_frame()
    model = train(frame=frame, y=y, max_ctr_complexity=2)
    part = load_forest(model, iteration_range=(2, 9))
    assert len(part.hashed.bucket) < len(load_forest(model).hashed.bucket)
    raw = compile_forest(part).predict_raw(frame)
    kind = {"prediction_type": "RawFormulaVal", "ntree_start": 2, "ntree_end": 9}
    same_bits(raw, model.predict(frame, **kind))


# ------------------------------------------------------------ rows


@pytest.fixture(scope="module")
def fitted():
    frame, y = make_frame()
    model = train("Classifier", frame, y > 2, max_ctr_complexity=2)
    return model, plain(model).fit(frame), frame


def test_bytes_and_frames_of_polars(fitted, monkeypatch):
    """``test_kinds.py`` compares other forms; polars needs no pyarrow."""
    model, fast, frame = fitted
    pl = pytest.importorskip("polars")
    coded = frame.assign(city=[text.encode() for text in frame["city"]])
    table = pl.from_pandas(frame)
    forms = coded, table.with_columns(pl.col("city").cast(pl.Categorical)), table
    expected = model.predict_proba(frame)
    for given in forms:
        if given is table:
            monkeypatch.setitem(sys.modules, "pyarrow", None)
        same_bits(fast.predict_proba(given), expected)
        same_bits(fast.predict_proba(given[:1]), expected[:1])
    assert fast.counters()["library"]["calls"] == 0


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_raw"])
def test_large_batches_are_one_call_of_entries_by_blocks(method, fitted, monkeypatch):
    """Rows that are made stay in L2 until a kernel reads them."""
    model, _, frame = fitted
    for module in (hashing, blocks):
        monkeypatch.setattr(module, "near_values", lambda: 1)  # 64 rows
    fast, objects = plain(model).fit(frame), frame.to_numpy(object)
    answer = getattr(fast, method)
    for _ in range(3):  # the entry is compiled after the first calls
        wanted = answer(objects[:64])
    before, read = fast.counters(), []
    monkeypatch.setattr(hashed_rows.HashedRows, "read", read.append)
    same_bits(answer(objects), np.concatenate([wanted, answer(objects[64:])]))
    after, n = fast.counters(), len(objects)
    assert after["entry"]["calls"] - before["entry"]["calls"] == 2
    assert after["entry"]["rows"] - before["entry"]["rows"] == n + n - 64
    known = "RawFormulaVal" if method == "predict_raw" else None
    expected = model.predict(objects, known) if known else None
    expected = getattr(model, method)(frame) if expected is None else expected
    same_bits(answer(objects), expected)
    assert not read

    objects[-1, 2] = 0.5  # what CatBoost refuses
    before = fast.counters()
    monkeypatch.undo()
    monkeypatch.setattr(blocks, "near_values", lambda: 1)
    with pytest.raises(cb.CatBoostError):
        answer(objects)
    assert fast.counters()["entry"] == before["entry"]


REFUSED = [*(("city", value) for value in (1.5, None, np.nan, 2**63))]
REFUSED += [("code", pd.NaT), ("size", "big"), ("size", "1.5"), ("age", pd.NA)]


@pytest.mark.parametrize(("column", "value"), REFUSED)
def test_values_that_are_refused(column, value, fitted, tmp_path):
    model, fast, frame = fitted
    rows = frame[:3].astype(object)
    rows.loc[1, column] = value
    given = rows.to_numpy(object)
    try:
        expected = model.predict(given)
    except Exception as error:  # noqa: BLE001 - what CatBoost raises
        with pytest.raises(type(error)):
            fast.predict(given)
    else:
        same_bits(fast.predict(given), expected)
    loaded = saved(fast, tmp_path)
    for bad in (rows, given):
        with pytest.raises((InvalidInputError, SourceNeededError)):
            loaded.predict(bad)
    model.save_model(tmp_path / "m.cbm")
    of_file = compile_forest(tmp_path / "m.cbm")
    with pytest.raises(InvalidInputError, match=f"row 1 has .*{column}"):
        of_file.predict_raw(rows)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_raw"])
def test_saved_models_answer_no_rows(method, fitted, tmp_path):
    _, fast, frame = fitted
    loaded = saved(fast, tmp_path)
    for none in (frame[:0], frame[:0].to_numpy(object)):
        same_bits(getattr(loaded, method)(none), getattr(fast, method)(none))


def test_rows_of_a_forest_are_no_rows_of_a_source(fitted):
    model, _, frame = fitted
    of_file = compile_forest(load_forest(model))
    made = np.zeros((3, of_file.forest.n_features), np.float32)
    for call in (of_file.predict_raw, of_file.predict, of_file.apply):
        for _ in range(20):  # small calls get an entry
            with pytest.raises(InvalidInputError, match="trained on 5 features"):
                call(made)
            call(frame[:1])


class Name(str):
    def __str__(self):
        return "another"


def test_texts_of_other_classes_are_what_they_hold(fitted):
    model, fast, frame = fitted
    rows = frame.to_numpy(object)[:9]
    rows[:, 0] = [Name(text) for text in rows[:, 0]]
    same_bits(fast.predict_raw(rows), raw_of(model, frame[:9])[:, 0])
    same_bits(fast.predict_raw(rows), raw_of(model, rows)[:, 0])


def test_frames_whose_names_are_not_alike(fitted):
    _, _, frame = fitted
    X, y = frame.to_numpy(object), np.arange(len(frame)) % 7
    named = pd.DataFrame(X, columns=[1, *"abcd"])
    for trained, others in (
        (X, ([0.0, 1.0, 2.0, 3.0, 4.0], ["a", "a", "b", "c", "d"])),
        (named, ([True, *"abcd"], [1.0, *"abcd"])),  # equal to 1, and other names
    ):
        model = train(frame=trained, y=y, cat_features=[0, 2, 4])
        fast, given = plain(model).fit(trained), pd.DataFrame(trained[:5])
        same_bits(fast.predict(given), model.predict(given))
        for names in others:
            rows = given.set_axis(names, axis=1)
            try:
                expected = model.predict(rows)
            except cb.CatBoostError:
                with pytest.raises(cb.CatBoostError):
                    fast.predict(rows)
            else:
                same_bits(fast.predict(rows), expected)


def test_columns_behind_the_models_are_passed_over(fitted, tmp_path):
    model, fast, frame = fitted
    loaded, wide = saved(fast, tmp_path), frame.assign(more=1.5)
    swapped = wide[["city", "age", "code", "size", "flag", "more"]]
    for rows in (wide, wide[:1], swapped, wide.to_numpy(object)):
        for answers in (fast, loaded):
            same_bits(answers.predict_proba(rows), model.predict_proba(rows))
    before = fast.counters()["library"]["calls"]
    same_bits(fast.predict_raw(swapped), raw_of(model, swapped)[:, 0])
    assert fast.counters()["library"]["calls"] == before


def test_dates_are_left_to_catboost(fitted):
    model, fast, frame = fitted
    dates = frame.assign(size=pd.Timestamp("2020"), age=pd.Timestamp("2020"))
    for answers in (model, fast):
        with pytest.raises(cb.CatBoostError):
            answers.predict(dates)


def test_rows_that_a_file_refuses(fitted, tmp_path):
    model, _, frame = fitted
    model.save_model(tmp_path / "m.cbm")
    of_file = compile_forest(tmp_path / "m.cbm")
    for rows, what in (
        (frame.rename(columns={"age": "years"}), "pass X\\[names\\]"),
        (frame.to_numpy(object)[:, 1:], "trained on 5 features"),
        (np.zeros((2, 5)), "row 0 has 0.0 in column 0, which is no category"),
        (None, "rows are None"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            of_file.predict_raw(rows)


# ------------------------------------------------------------ everything else


def check_shap_values(model, fast, rows):
    pool = cb.Pool(rows, cat_features=[name for name in CATEGORIES if name in rows])
    wanted = model.get_feature_importance(pool, type="ShapValues")
    values = fast.predict_contribs(rows)
    assert values.shape == wanted.shape
    np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-12)


def test_shap_values_are_those_of_catboost():
    frame, y = make_frame()
    for kind, target, params in (
        ("Regressor", y, {"one_hot_max_size": 255}),
        ("Regressor", y, {"max_ctr_complexity": 3}),
        ("Classifier", np.digitize(y, [1, 3]), {"max_ctr_complexity": 2}),
    ):
        model = train(kind, frame, target, iterations=5, **params)
        fast = plain(model).fit(frame)
        # one row more than columns, too
        for n in (50, len(frame.columns) + 1, fast.forest_.n_features + 1):
            check_shap_values(model, fast, frame[:n])
    with pytest.raises(UnsupportedModelError, match="interactions of columns"):
        fast.predict_contribs(frame[:2], interactions=True)


def test_shap_values_of_one_output_more_than_columns():
    frame, y = make_frame()
    cities, several = frame[["city"]], np.stack([y, y**2, -y], 1)
    how = {"loss_function": "MultiRMSE", "simple_ctr": ["Counter"], "iterations": 5}
    model = train(frame=cities, y=several, cat_features=["city"], **how)
    fast = plain(model).fit(cities)
    assert fast.forest_.n_outputs == fast.forest_.n_features + 1
    check_shap_values(model, fast, cities[:9])
    with pytest.raises(UnsupportedModelError, match="interactions of columns"):
        fast.predict_contribs(cities[:9], interactions=True)


@pytest.mark.parametrize("names", [CATEGORIES, []], ids=["categories", "numbers"])
def test_files_need_no_catboost(names, tmp_path):
    frame, y = make_frame()
    frame = frame if names else frame[["size", "age"]]
    labels = np.array(["low", "high"])[(y > 2).astype(int)]
    model = train("Classifier", frame, labels, cat_features=names)
    skforge.save(plain(model).fit(frame), tmp_path / "m.skforge")
    frame[:20].to_json(tmp_path / "rows.json", orient="records")
    code = """
import json, sys
import skforge
sys.modules["catboost"] = sys.modules["pandas"] = None
fast = skforge.load("m.skforge")
rows = json.load(open("rows.json"))
print(json.dumps([fast.predict_proba(rows).tolist(), fast.predict(rows).tolist()]))
"""
    made = run_python(code, cwd=tmp_path)
    rows = pd.DataFrame(json.loads((tmp_path / "rows.json").read_text()))
    wanted = [model.predict_proba(rows).tolist(), model.predict(rows).tolist()]
    assert json.loads(made) == wanted


def written(frame, folder, kind="csv"):
    path = folder / f"rows.{kind}"
    getattr(frame, f"to_{kind}")(path, **({"index": False} if kind == "csv" else {}))
    return path


def predicted(capsys, model, frame, folder, kind="csv"):
    """Return how ``predict`` ends of a model's file and rows of a kind."""
    model.save_model(folder / "m.cbm")
    rows, out = written(frame, folder, kind), folder / "out.npy"
    code, _, said = command(capsys, "predict", folder / "m.cbm", rows, "-o", out)
    return code, " ".join(said.split())


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather"])
def test_rows_of_files_and_tables(kind, tmp_path, capsys):
    frame, y = make_frame()
    model = train(frame=frame, y=y, max_ctr_complexity=2)
    assert predicted(capsys, model, frame, tmp_path, kind)[0] == 0
    same_bits(np.load(tmp_path / "out.npy"), model.predict(frame))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_wrapper_takes_its_members_categories_of_files(kind, tmp_path, capsys):
    frame, y = make_frame(100)
    inner = train("Classifier", frame, y > 2, iterations=3)
    model = CalibratedClassifierCV(FrozenEstimator(inner), cv=2).fit(frame, y > 2)
    joblib.dump(model, tmp_path / "m.joblib")
    skforge.save(plain(model).fit(frame), tmp_path / "m.skforge")
    call = "verify", tmp_path / "m.skforge", "--model", tmp_path / "m.joblib", "--data"
    assert command(capsys, *call, written(frame, tmp_path, kind))[0] == 0


def test_a_file_with_a_missing_category_is_refused(tmp_path, capsys):
    frame, y = make_frame(100)
    model = train(frame=frame, y=y)
    frame.loc[7, "city"] = None
    code, said = predicted(capsys, model, frame, tmp_path, "parquet")
    assert code and "row 8 of column 'city' has None" in said


def test_random_models_and_rows():
    for seed in range(3):
        outcome = random_categories.attempt(seed)
        assert outcome.calls or outcome.refused
        assert outcome.differs == [], outcome.how


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    frame, y = make_frame(200)
    model = train(frame=frame, y=y, iterations=4, depth=3, max_ctr_complexity=2)
    path = tmp_path_factory.mktemp("cbm") / "m.cbm"
    model.save_model(path)
    return path.read_bytes()


def test_borders_that_do_not_ascend_are_refused(content):
    # CatBoost counts the borders below a number: in another order, answers are others
    found = read_cbm(content)
    kinds = [found.border, *(one.borders for one in found.categories.ctrs)]
    several = [borders for borders in kinds if len(borders) > 1]
    assert len(several) > 1
    for borders in several:
        at = content.index(borders[:2].tobytes())
        for value in (float(borders[1]), 1e30, float("nan")):
            changed = bytearray(content)
            struct.pack_into("<f", changed, at, value)
            with pytest.raises(InvalidModelError, match="border"):
                load_forest(bytes(changed))


def test_places_that_no_search_finds_are_refused(content):
    refused = 0
    for table in read_cbm(content).categories.tables.values():
        for key in table.key.tolist():
            at = content.index(struct.pack("<Q", key))
            changed = bytearray(content)
            changed[at] ^= 1  # its own place is another one, or one that it passes
            try:
                load_forest(bytes(changed))
            except InvalidModelError as error:
                refused += "no search finds it" in str(error)
    assert refused


@pytest.mark.parametrize("texts", [False, True])
def test_booleans_of_csv_are_read_if_they_were_texts(tmp_path, texts, capsys):
    frame, y = make_frame(100)
    frame["flag"] = frame["flag"] == "yes"
    y = y + 2 * frame["flag"]  # so that the model tests it
    frame["flag"] = frame["flag"].astype(str) if texts else frame["flag"]
    code, said = predicted(capsys, train(frame=frame, y=y), frame, tmp_path)
    assert bool(code) == ("has the texts True and False" in said) != texts


def test_stored_keys_are_packed_and_damage_is_refused(content):
    forest, arrays = load_forest(content), {}
    record = forest_out(forest, arrays)
    again = forest_in(record, arrays).validate()
    assert repr(again.hashed) == repr(forest.hashed)
    packed = arrays["forest.packed"]
    assert len(packed) < 8 * len(forest.hashed.key) + len(forest.hashed.bucket)
    offset = arrays["forest.key_offset"]
    for name, changed in (
        ("packed", packed[:-9]),
        ("packed", packed[:0]),
        ("packed", np.append(packed[:40], packed[41:])),
        ("packed", np.frombuffer(zlib.compress(bytes(1 << 25)), np.uint8)),
        ("key_offset", offset[:0]),
        ("key_offset", offset + np.int64(1)),
        ("key_offset", -offset),
        ("key_offset", np.append(offset[:-1], np.int64(2**62))),
    ):
        with pytest.raises(InvalidModelError):
            forest_in(record, {**arrays, f"forest.{name}": changed}).validate()


def test_statistics_of_pairs_by_their_hashes():
    """Encoded rows are what the model's tables say of each combination's hash."""
    frame, _ = make_frame(2000)
    pairs = frame["city"] + frame["code"].astype(str)
    y = pd.factorize(pairs)[0] % 7 + np.nan_to_num(frame["size"])
    params = {"iterations": 60, "depth": 5, "one_hot_max_size": 1}
    model = train(frame=frame, y=y, max_ctr_complexity=2, **params)
    hashed = load_forest(model).hashed
    sizes, _ = tables_of(hashed)
    assert dict(zip(SIZES, sizes, strict=True))["n_both"]

    random = np.random.default_rng(0)
    rows = np.zeros((320, hashed.n_features), np.float32)
    bits = rows.view(np.int32)
    numbers = ~hashed.is_category
    rows[:, : hashed.n_columns][:, numbers] = random.normal(size=(320, numbers.sum()))
    bits[:, : hashed.n_columns][:, ~numbers] = random.integers(
        -(2**31), 2**31, (320, (~numbers).sum())
    )
    keys = 0  # rows whose pair of categories has the hash of a key
    for i in range(len(hashed.part_offset) - 1):
        parts = slice(hashed.part_offset[i], hashed.part_offset[i + 1])
        known = hashed.key[hashed.key_offset[i] : hashed.key_offset[i + 1]]
        if (hashed.part_kind[parts] == HASH).all() and len(known):
            of = hashed.part_column[parts]
            inverse = pow(MULTIPLIER, -1, 2**64)
            total = (known * np.uint64(inverse**2 % 2**64)).view(np.int64)
            if len(of) == 2:
                x, y_ = _pairs_of(total, MULTIPLIER).reshape(2, -1)
                fits = (x == x.astype(np.int32)) & (y_ == y_.astype(np.int32))
                assert fits.sum() >= len(known)
                for a, b in list(zip(x[fits], y_[fits], strict=True))[:60]:
                    bits[keys, of] = a, b
                    keys += 1
    assert keys > 20
    wanted = rows.copy()
    for r, row in enumerate(bits):
        for i in range(len(hashed.part_offset) - 1):
            total = 0
            for p in range(hashed.part_offset[i], hashed.part_offset[i + 1]):
                kind, column = hashed.part_kind[p], hashed.part_column[p]
                given, number = row[column], hashed.part_value[p]
                x, border = given.view(np.float32), number.view(np.float32)
                part = {HASH: given, EQUAL: given == number, ABOVE: x > border}.get(
                    kind, not x <= border
                )
                total = (total + int(part) * MULTIPLIER) * MULTIPLIER % 2**64
            known = hashed.key[hashed.key_offset[i] : hashed.key_offset[i + 1]]
            first, end = hashed.statistic_offset[i : i + 2]
            width = end - first
            start = int(
                np.diff(hashed.statistic_offset[: i + 1])
                @ (np.diff(hashed.key_offset[: i + 1]) + 1)
            )
            at = int(np.searchsorted(known, np.uint64(total)))
            if at == len(known) or known[at] != total:
                at = len(known)
            of_key = hashed.bucket[start + at * width :][:width]
            wanted[r, hashed.n_columns + first : hashed.n_columns + end] = of_key
    encoder = hashing.Encoder(hashed)
    alone = rows.copy()
    for r in range(len(rows)):
        encoder.encode(alone[r : r + 1])
    encoder.encode(rows)
    np.testing.assert_array_equal(rows.view(np.int32), wanted.view(np.int32))
    np.testing.assert_array_equal(alone.view(np.int32), wanted.view(np.int32))
