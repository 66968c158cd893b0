"""Rows that are answered by blocks, and answers that are written to ``out``."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)

import skforge
from skforge import CompiledForest, InvalidInputError
from skforge.prediction import blocks
from tests.comparing import assert_alike
from tests.plain import plain

pd = pytest.importorskip("pandas")

NAMES = list("abcd")
random = np.random.default_rng(0)
X = random.normal(size=(600, 4))
Y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
MODELS = {
    "forest": RandomForestClassifier(5, random_state=0).fit(X, Y),
    "of a frame": RandomForestClassifier(5, random_state=0).fit(
        pd.DataFrame(X, columns=NAMES), Y
    ),
    "boosting": GradientBoostingClassifier(n_estimators=5).fit(X, Y),
    "regressor": HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 0]),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut what has more than 64 rows of 4 columns, by 25 rows."""
    monkeypatch.setattr(blocks, "MOST_VALUES", 256)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 100)


def mapped(rows, folder):
    made = np.memmap(folder / "rows", rows.dtype, "w+", shape=rows.shape)
    made[...] = rows
    return made


def fast_of(name):
    return CompiledForest(MODELS[name], tuning="off", n_jobs=1).fit(
        pd.DataFrame(X, columns=NAMES) if name == "of a frame" else X
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_blocks_answer_as_the_source_does(name, small_blocks, tmp_path):
    pl = pytest.importorskip("polars")
    fast, frame = fast_of(name), pd.DataFrame(X, columns=NAMES)
    forms = {
        "array": X,
        "float32": X.astype(np.float32),
        "F-order": np.asfortranarray(X),
        "memmap": mapped(X, tmp_path),
        "frame": frame,
        "mixed": frame.assign(d=(frame["d"] > 0)),
        "polars": pl.from_pandas(frame),
    }
    for form, rows in forms.items():
        assert blocks.is_large(rows), form
        for _ in range(2):  # without and with a compiled entry
            assert_alike(fast, MODELS[name], rows, methods=("predict", "predict_proba"))


def test_a_block_that_the_source_refuses(small_blocks):
    wrong = X.copy()
    wrong[-1, 0] = np.inf
    for name in ("forest", "boosting"):
        with pytest.raises(ValueError, match="infinity") as expected:
            MODELS[name].predict(wrong)
        with pytest.raises(ValueError, match="infinity") as found:
            fast_of(name).predict(wrong)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("large", [False, True])
def test_answers_are_written_to_out(large, monkeypatch, tmp_path):
    if large:
        monkeypatch.setattr(blocks, "MOST_VALUES", 256)
        monkeypatch.setattr(blocks, "BLOCK_VALUES", 100)
    for name in ("forest", "boosting"):
        fast = fast_of(name)
        for method in ("predict_raw", "predict_proba"):
            expected = getattr(fast, method)(X)
            out = np.memmap(
                tmp_path / f"{name} {method}",
                expected.dtype,
                "w+",
                shape=expected.shape,
            )
            assert getattr(fast, method)(X, out=out) is out
            np.testing.assert_array_equal(out, expected)
            every_second = np.empty((*expected.shape, 2), expected.dtype)[..., 0]
            getattr(fast, method)(X, out=every_second)
            np.testing.assert_array_equal(every_second, expected)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_answers_of_some_rounds_are_written_to_out(library):
    module = pytest.importorskip(library)
    how = {"xgboost": "iteration_range", "lightgbm": "num_iteration"}
    of = {how[library]: (0, 2) if library == "xgboost" else 2}
    kind = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}[library]
    model = getattr(module, kind)(n_estimators=5, verbosity=0).fit(X, X[:, 0] > 0)
    fast, expected = plain(model).fit(X), model.predict_proba(X, **of)
    out = np.zeros_like(expected)
    assert fast.predict_proba(X, **of, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (
            np.zeros((600, 2), np.float32),
            r"dtype float64, like the result. Got shape \(600, 2\) and dtype float32 ",
        ),
        (np.zeros((599, 2)), r"Got shape \(599, 2\) and dtype float64 instead"),
        ([0.0] * 600, "out must be a NumPy array. Got list instead"),
        (np.broadcast_to(np.zeros(2), (600, 2)), "out is read-only"),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_an_out_that_does_not_fit_is_left_alone(out, text, large, monkeypatch):
    if large:
        monkeypatch.setattr(blocks, "MOST_VALUES", 256)
    with pytest.raises(InvalidInputError, match=text):
        fast_of("forest").predict_proba(X, out=out)
    assert not np.any(out)


class OnADevice:
    def __array__(self, *how: Any, **options: Any) -> Any:
        raise TypeError("such as CuPy's arrays, which are not copied unasked")


def test_an_out_that_numpy_cannot_copy_is_refused(small_blocks):
    with pytest.raises(InvalidInputError, match="Got OnADevice instead"):
        fast_of("forest").predict_proba(X, out=OnADevice())


OVERLAPS = {
    "a column": lambda rows: rows[:, 0],
    "a column upwards": lambda rows: rows[::-1, 0],
    "the head": lambda rows: rows.reshape(-1)[: len(rows)],
    "the tail": lambda rows: rows.reshape(-1)[-len(rows) :],
}


@pytest.mark.parametrize("part", OVERLAPS)
def test_out_may_overlap_the_rows(part, small_blocks):
    model = MODELS["regressor"]
    compiled = skforge.compile_forest(model, skforge.Schedule())
    fast = plain(model).fit(X)
    for predict in (fast.predict_raw, compiled.predict_raw, compiled.predict):
        rows = X.copy()
        out = OVERLAPS[part](rows)
        assert predict(rows, out=out) is out
        np.testing.assert_array_equal(out, model.predict(X))


def test_out_may_overlap_a_frame_of_the_rows(small_blocks):
    rows, model = X.copy(), MODELS["regressor"]
    frame = pd.DataFrame(rows, copy=False)
    out = plain(model).fit(X).predict_raw(frame, out=rows[::-1, 0])
    np.testing.assert_array_equal(out, model.predict(X))


def test_modules_write_to_out():
    module = skforge.compile_forest(MODELS["boosting"])
    for method in (module.predict_raw, module.predict):
        expected = method(X)
        out = np.empty_like(expected)
        assert method(X, out=out) is out
        np.testing.assert_array_equal(out, expected)
    with pytest.raises(InvalidInputError, match="out must have shape"):
        module.predict_raw(X, out=np.empty(3))


def test_rows_on_disk_need_memory_for_a_block(monkeypatch, tmp_path):
    monkeypatch.setattr(blocks, "MOST_VALUES", 1 << 18)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 1 << 16)
    rows = mapped(np.tile(X, (500, 1)), tmp_path)  # 9.6 MB
    fast = fast_of("boosting")
    out = np.empty(len(rows))
    fast.predict_raw(rows[:1000])
    tracemalloc.start()
    try:
        fast.predict_raw(rows, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
    np.testing.assert_array_equal(out[-600:], fast.predict_raw(X))


def test_out_is_no_metadata_to_route():
    assert not hasattr(CompiledForest, "set_predict_proba_request")
