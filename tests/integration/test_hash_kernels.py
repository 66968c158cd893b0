"""Kernels that make the statistics of CatBoost's categories: the bits of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge import CompiledForest, Target, compile_forest, load_forest
from skforge.engine import hash_kernels, hashing
from skforge.engine.kernels import KernelCache, raw_scores
from skforge.exceptions import VerificationWarning
from skforge.forest.reference import reference_raw
from skforge.schedule.families import bitsliced_schedule

cb = pytest.importorskip("catboost")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

QUIET = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}


def drawn(n, seed, numbers=2):
    """Return rows of objects: few values, many, whole numbers, and then numbers."""
    random = np.random.default_rng(seed)
    rows = np.empty((n, 3 + numbers), object)
    rows[:, 0] = random.choice([f"few {i}" for i in range(3)], n)
    rows[:, 1] = random.choice([f"some {i}" for i in range(70 + 9 * seed)], n)
    rows[:, 2] = random.integers(-4, 9, n).astype(object)
    for i in range(numbers):
        values = random.normal(size=n)
        rows[:, 3 + i] = np.where(random.random(n) < 0.05, np.nan, values)
    return rows


def trained(numbers=2, classes=0, **params):
    rows = drawn(500, 0, numbers)
    target = np.array([len(a) + int(b[5:]) % 7 + c for a, b, c in rows[:, :3]], float)
    for column in rows[:, 3:].T:
        target += np.nan_to_num(column.astype(float))
    if classes:
        cuts = np.quantile(target, np.arange(1, classes) / classes)
        target = np.digitize(target, cuts)
    kind = cb.CatBoostClassifier if classes else cb.CatBoostRegressor
    params = {"iterations": 20, "depth": 4, "cat_features": [0, 1, 2]} | params
    return kind(**params, **QUIET).fit(rows, target)


def raw_of(model, rows):
    return cb.CatBoost.predict(model, rows, prediction_type="RawFormulaVal")


MODELS = {
    "pairs": {"max_ctr_complexity": 2},
    "no numbers": {"numbers": 0, "max_ctr_complexity": 3},
    "one by one": {"one_hot_max_size": 100},
    "NaN is least": {"nan_mode": "Min", "classes": 2},
    "NaN is greatest": {"nan_mode": "Max", "classes": 3},
    "leaves of several levels": {"grow_policy": "Lossguide", "max_leaves": 11},
}


@pytest.mark.parametrize(
    ("name", "block"),
    [*((name, 64) for name in MODELS), ("pairs", 128), ("NaN is least", 256)],
)
def test_scores_of_hashes_are_those_of_the_reference(name: str, block: int) -> None:
    forest = load_forest(trained(**MODELS[name]))
    assert forest.tests_bytes
    hashes, rows = hash_kernels._drawn(forest)
    expected = np.squeeze(reference_raw(forest, rows))
    cache = KernelCache(forest, Target.host(), "exact", hashes=True)
    kernel = cache.kernel(bitsliced_schedule(block), "accumulator")
    for n in (len(rows), 1, 63, 65, 257):
        for part in (slice(n), slice(len(rows) - n, None)):
            found = raw_scores(forest, kernel, hashes[part])
            np.testing.assert_array_equal(found, expected[part])
    whole = np.full((len(rows), forest.n_columns + 3), np.nan, np.float32)
    whole[:, : forest.n_columns] = hashes  # rows that lie apart
    found = raw_scores(forest, kernel, whole[:, : forest.n_columns])
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def model():
    return trained(max_ctr_complexity=2, classes=2)


@pytest.mark.parametrize(("n_jobs", "classes"), [(1, 3), (2, 2)])
def test_objects_are_answered_by_kernels_of_hashes(n_jobs: int, classes: int) -> None:
    model = trained(max_ctr_complexity=2, classes=classes)
    schedules = {(1, 100): bitsliced_schedule(64), (101, None): bitsliced_schedule(128)}
    fast = CompiledForest(model, tuning="off", schedule=schedules, n_jobs=n_jobs)
    fast.fit(drawn(90, 1))
    kernels = fast._predictor.module.hash_kernels
    for n in (1, 64, 65, 100, 101, 1024, 1025, 2300):
        rows = drawn(n, 2)
        for _ in range(2):
            np.testing.assert_array_equal(fast.predict_raw(rows), raw_of(model, rows))
            for method in ("predict", "predict_proba", "predict_log_proba"):
                expected = getattr(model, method)(rows)
                np.testing.assert_array_equal(getattr(fast, method)(rows), expected)
        assert kernels.compiled() == [[], [0], [0, 1]][(n > 64) + (n > 100)]
    counters = fast.counters()
    assert counters["library"]["calls"] == 0
    assert counters["kernel"]["rows"] <= 4 + 64  # of first calls


def test_warm_up_compiles_them(model) -> None:
    fast = CompiledForest(model, tuning="off", schedule=bitsliced_schedule(64))
    fast.fit(drawn(90, 1)).warm_up()
    assert fast._predictor.module.hash_kernels.compiled() == [0]


def test_one_that_disagrees_never_answers(model, monkeypatch) -> None:
    draw = hash_kernels._drawn

    def wrong(forest):
        hashes, rows = draw(forest)
        return np.roll(hashes, 1, 0), rows

    monkeypatch.setattr(hash_kernels, "_drawn", wrong)
    fast = CompiledForest(model, tuning="off", schedule=bitsliced_schedule(64))
    fast.fit(drawn(60, 1))
    rows = drawn(200, 2)
    fast.predict_raw(rows[:1])
    with pytest.warns(VerificationWarning, match="disagrees"):
        for _ in range(4):
            found = fast.predict_raw(rows)
    np.testing.assert_array_equal(found, raw_of(model, rows))
    kernels = fast._predictor.module.hash_kernels
    assert [*kernels.table._words] == [0, 0, 0]


def test_what_compares_no_bytes_has_none(model) -> None:
    forest = load_forest(model)
    by_tiles = compile_forest(forest, bitsliced_schedule(64, 3))
    assert by_tiles.hash_kernels.least_rows > 1 << 40
    last = forest.threshold.copy()
    last[np.argmax(forest.feature)] = 255
    assert not replace(forest, threshold=last).tests_bytes
    assert not replace(forest, hashed=None).tests_bytes


def test_hashes_of_both_kinds_are_drawn(model) -> None:
    forest = load_forest(model)
    hashes, rows = hash_kernels._drawn(forest)
    expected = rows.copy()
    expected[:, forest.n_columns :] = -1
    hashing.Encoder(forest.hashed).encode(expected)
    np.testing.assert_array_equal(rows.view(np.int32), expected.view(np.int32))
    known = np.isin(
        hashes[:, 1].view(np.int32), hash_kernels.known_hashes(forest.hashed)[1]
    )
    assert 0.5 < known.mean() < 1


# ------------------------------------------------------------ frames and tables


def framed(n, seed):
    random = np.random.default_rng(seed)
    texts = ["", "città", "日本", "x" * 70, *(f"text {i}" for i in range(9 + seed))]
    return pd.DataFrame(
        {
            "text": random.choice(np.array(texts, object), n).astype(object),
            "number": np.where(random.random(n) < 0.1, np.nan, random.normal(size=n)),
            "code": random.integers(-3, 9, n),
            "other": random.choice(np.array(["yes", "no"], object), n).astype(object),
        }
    )


@pytest.fixture(scope="module")
def of_frames():
    frame = framed(400, 0)
    score = frame["text"].map(len) + frame["code"] + frame["number"].fillna(0)
    params = {"cat_features": ["text", "code", "other"], "max_ctr_complexity": 2}
    model = cb.CatBoostClassifier(iterations=20, depth=4, **params, **QUIET)
    model.fit(frame, np.digitize(score, [5, 9]))
    fast = CompiledForest(model, tuning="off", schedule=bitsliced_schedule(64))
    fast.fit(frame[:80])._predictor.module.limit_entries(300)  # others in blocks
    return model, fast


def chunked(frame):
    """Return a table whose chunks begin within others, one of them empty."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    parts = table[:1], table[1:71], table[71:71], table[71:]
    return pa.concat_tables(parts)


def with_texts(frame, dtype):
    return frame.astype({"text": dtype, "other": dtype})


FORMS = {
    "objects": lambda frame: frame,
    "categories": lambda frame: with_texts(frame, "category"),
    "texts of pyarrow": lambda frame: with_texts(frame, "string[pyarrow]"),
    "long texts of pyarrow": lambda frame: with_texts(
        frame, pd.ArrowDtype(pa.large_string())
    ),
    "chunks": chunked,
    "polars": lambda frame: pl.from_pandas(frame),
}


@pytest.mark.parametrize("form", FORMS)
def test_frames_are_answered_by_kernels_of_hashes(of_frames, form: str) -> None:
    model, fast = of_frames
    module = fast._predictor.module
    for n in (200, 64, 65, 530):
        frame = framed(n, 2)
        given, expected = FORMS[form](frame), raw_of(model, frame)
        for _ in range(2):
            before = fast.counters()
            np.testing.assert_array_equal(fast.predict_raw(given), expected)
            after = fast.counters()
        assert after["library"] == before["library"]
        assert after["entry"]["rows"] == before["entry"]["rows"] + n
    assert module.hash_kernels.compiled() == [0]


def test_missing_texts_are_left_to_catboost(of_frames) -> None:
    _, fast = of_frames
    frame = with_texts(framed(100, 2), "string[pyarrow]")
    frame.loc[70, "text"] = pd.NA
    with pytest.raises(Exception, match=r"(?i)categor|NA|NaN"):
        fast.predict_raw(frame)
