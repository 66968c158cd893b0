"""The check at the end of ``fit``: every kernel, at several sizes, and every output."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import skforge.prediction.verification as verification
from skforge import CompiledForest, Schedule, VerificationError
from skforge.compiler.runtime.module import CompiledModule
from skforge.prediction.predictor import Predictor

xgb = pytest.importorskip("xgboost")

X, Y = make_classification(
    300, 6, n_classes=3, n_informative=4, n_redundant=0, random_state=0
)
FITTED = RandomForestClassifier(5, random_state=0).fit(X, Y)


def message(call, kind):
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind
    return str(error.value)


def lie(monkeypatch, row, factor=1.0):
    """Make the compiled module change one row's scores."""
    honest = CompiledModule.predict_raw

    def predict_raw(self, rows, *, n_jobs=None):
        raw = honest(self, rows, n_jobs=n_jobs)
        if len(raw) > row:
            raw[row] = np.nextafter(raw[row] * factor, 9)
        return raw

    monkeypatch.setattr(CompiledModule, "predict_raw", predict_raw)


def test_one_wrong_bit_is_noticed_and_changes_nothing(monkeypatch):
    compiled = CompiledForest(RandomForestRegressor(3, random_state=0)).fit(X, Y)
    before = dict(vars(compiled))
    lie(monkeypatch, row=0)
    text = message(lambda: compiled.fit(X, Y), VerificationError)
    expected = compiled.estimator_.predict(X[:1])[0]
    first = min(compiled.schedule_, key=lambda batch: batch[0])
    assert text == (
        f"row 0 of X: compiled {np.nextafter(expected, 9).item()!r}, expected "
        f"{expected.item()!r}, with batches of 1 and the schedule "
        f"{compiled.schedule_[first]!r}. Nothing was changed; please report the model, "
        "and use the source's own predict meanwhile."
    )
    assert vars(compiled) == before


def test_every_kernel_is_checked(monkeypatch):
    compiled = CompiledForest(FITTED).fit(X)
    kernels = {s: first for (first, _), s in sorted(compiled.schedule_.items())[::-1]}
    assert len(kernels) > 1
    for first in kernels.values():
        with monkeypatch.context() as patch:
            lie(patch, row=first - 1)
            with pytest.raises(VerificationError) as error:
                CompiledForest(FITTED).fit(X)
            assert f"with batches of {first} and" in str(error.value)


def test_rows_around_thresholds_are_checked_as_well(monkeypatch):
    model = RandomForestRegressor(3, random_state=0).fit(X, Y)
    monkeypatch.setattr(verification, "CALLS", 10**6)
    lie(monkeypatch, row=0)
    text = message(lambda: CompiledForest(model).fit(X[:0]), VerificationError)
    assert text.startswith("row 0 drawn around the model's thresholds: compiled ")


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_transforms_are_checked_as_well(monkeypatch, method):
    model = xgb.XGBClassifier(n_estimators=3, n_jobs=1).fit(X, Y)
    honest = getattr(Predictor, method)

    def lying(self, rows, n_jobs=None):
        answer = honest(self, rows, n_jobs).copy()
        answer[-1] = answer[-1] + 1
        return answer

    monkeypatch.setattr(Predictor, method, lying)
    expected = getattr(model, method)(X[-1:])[0]
    text = message(lambda: CompiledForest(model).fit(X), VerificationError)
    assert text == (
        f"row 299 of X: {method} gives {(expected + 1).tolist()!r}, expected "
        f"{expected.tolist()!r}. Nothing was changed; please report the model, and use "
        "the source's own predict meanwhile."
    )


def test_a_boosters_values_are_checked(monkeypatch):
    booster = xgb.XGBRegressor(n_estimators=2, n_jobs=1).fit(X, Y).get_booster()
    monkeypatch.setattr(Predictor, "transformed", lambda self, rows: -np.ones(256))
    text = message(lambda: CompiledForest(booster).fit(X), VerificationError)
    assert text.startswith("row 0 of X: transformed gives -1.0, expected ")


def test_fast_sums_may_differ_by_the_limit_only(monkeypatch):
    lie(monkeypatch, row=2, factor=1.01)
    with pytest.raises(VerificationError):
        CompiledForest(FITTED, reduction="fast").fit(X)


# ------------------------------------------------------------- several sizes


def lie_at(monkeypatch, size):
    """Make the compiled module change the last row of batches of one size."""
    honest = CompiledModule.predict_raw

    def predict_raw(self, rows, *, n_jobs=None):
        raw = honest(self, rows, n_jobs=n_jobs)
        if len(raw) == size:
            raw[-1] = np.nextafter(raw[-1], 9)
        return raw

    monkeypatch.setattr(CompiledModule, "predict_raw", predict_raw)


BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
TABLE = {(1, 1): BLOCKS, (2, 40): BLOCKS, (41, None): BLOCKS}


@pytest.fixture(params=["model", "file"])
def source(request, tmp_path):
    """Return a fitted model, and the same as a file."""
    model = xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    model.save_model(tmp_path / "model.json")
    return model if request.param == "model" else tmp_path / "model.json"


@pytest.mark.parametrize("size", [1, 2, 21, 40, 41, 57, 79])
def test_ranges_are_checked_at_both_ends_and_between(monkeypatch, source, size):
    lie_at(monkeypatch, size)
    compiled = CompiledForest(source, schedule=TABLE)
    text = message(lambda: compiled.fit(X), VerificationError)
    assert f"with batches of {size} and the schedule {BLOCKS!r}." in text
    assert not hasattr(compiled, "forest_")


def test_all_rows_of_a_batch_are_compared(monkeypatch, source):
    # more rows than the sample has: they repeat, and the last is one of them
    ranges = CompiledForest(source, tuning="off").fit(X).schedule_
    last = max(last for _, last in ranges if last is not None)
    lie_at(monkeypatch, last)
    compiled = CompiledForest(source, tuning="off")
    text = message(lambda: compiled.fit(X[:50]), VerificationError)
    assert f"with batches of {last} and" in text


def test_a_large_batch_has_few_values(monkeypatch):
    monkeypatch.setattr(verification, "MOST_VALUES", 6 * 90)
    table = {(1, 1000): BLOCKS, (1001, None): BLOCKS}
    compiled = CompiledForest(FITTED, schedule=table).fit(X)
    sizes = [size for _, size in verification._batch_sizes(compiled._predictor.module)]
    # the first size of a range is the only one that cannot be made smaller
    assert sizes == [1, 25, 47, 1001]


@pytest.mark.parametrize("method", ["predict_raw", "transformed"])
def test_a_files_outputs_are_compared(monkeypatch, tmp_path, method):
    model = xgb.XGBClassifier(n_estimators=3, n_jobs=1).fit(X, Y > 0)
    model.save_model(tmp_path / "model.json")
    honest = getattr(Predictor, method)

    def lying(self, rows, *options):
        return honest(self, rows, *options) + 1

    monkeypatch.setattr(Predictor, method, lying)
    margin = method == "predict_raw"
    expected = model.get_booster().predict(xgb.DMatrix(X[:1]), output_margin=margin)[0]
    text = message(
        lambda: CompiledForest(tmp_path / "model.json").fit(X), VerificationError
    )
    assert text == (
        f"row 0 of X: {method} gives {(expected + 1).item()!r}, expected "
        f"{expected.item()!r}. Nothing was changed; please report the model, and use "
        "the source's own predict meanwhile."
    )
