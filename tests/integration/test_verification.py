"""Every kernel is compared before it answers; ``fit`` checks all outputs, too."""

from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import skforge
import skforge.prediction.kernel_checks as kernel_checks
from skforge import CompiledForest, Schedule, VerificationWarning
from skforge.engine import kernels
from skforge.exceptions import VerificationError
from skforge.prediction import of_trees
from skforge.prediction.predictor import ForestPredictor
from tests.comparing import refusal

pytestmark = pytest.mark.doors

xgb = pytest.importorskip("xgboost")

X, Y = make_classification(
    300, 6, n_classes=3, n_informative=4, n_redundant=0, random_state=0
)
FITTED = RandomForestClassifier(5, random_state=0).fit(X, Y)


def lie(monkeypatch, row, factor=1.0):
    """Make kernels change one row's scores."""
    honest = kernels.Kernel.__call__

    def lying(self, rows, result, threads):
        honest(self, rows, result, threads)
        if len(rows) > row:
            result[row] = np.nextafter(result[row] * factor, 9)

    monkeypatch.setattr(kernels.Kernel, "__call__", lying)


def test_one_wrong_bit_is_noticed_and_changes_nothing(monkeypatch):
    compiled = CompiledForest(RandomForestRegressor(3, random_state=0)).fit(X, Y)
    before = dict(vars(compiled))
    lie(monkeypatch, row=0)
    text = refusal(VerificationError, compiled.fit, X, Y)
    expected = compiled.estimator_.predict(X[:1])[0]
    first = min(compiled.schedule_, key=lambda batch: batch[0])
    assert text == (
        f"row 0 of X: the compiled code gives {np.nextafter(expected, 9).item()!r}, "
        f"but the model gives {expected.item()!r}, with batches of 1 and the schedule "
        f"{compiled.schedule_[first]!r}. Please report this model, and use the source "
        "model's own predict until it is fixed."
    )
    assert vars(compiled) == before


def test_rows_around_thresholds_are_checked_as_well(monkeypatch):
    model = RandomForestRegressor(3, random_state=0).fit(X, Y)
    lie(monkeypatch, row=0, factor=2.0)
    text = refusal(VerificationError, CompiledForest(model).fit, X[:0])
    assert re.match(
        r"random row \d+ around the model's thresholds: the compiled ", text
    )


CHECKED = {
    "model": ("predict", "predict_proba"),
    "booster": ("transformed",),
    "file": ("predict_raw", "transformed"),
}


@pytest.mark.parametrize(
    ("form", "method"), [(form, name) for form in CHECKED for name in CHECKED[form]]
)
def test_answers_are_checked_as_well(monkeypatch, tmp_path, form, method):
    model = xgb.XGBClassifier(n_estimators=3, n_jobs=1).fit(X, Y > 0)
    booster, file = model.get_booster(), tmp_path / "model.json"
    booster.save_model(file)
    of_booster, owner, name = method == "transformed", ForestPredictor, "answer"
    if of_booster:
        owner, name = of_trees, method
    honest = getattr(owner, name)

    def lying(self, *asked):
        answer = honest(self, *asked).copy()
        answer[-1] = answer[-1] + (of_booster or asked[0] == method)
        return answer

    monkeypatch.setattr(owner, name, lying)
    if form == "model":
        expected = getattr(model, method)(X)[-1]
    else:
        expected = booster.predict(xgb.DMatrix(X), output_margin=not of_booster)[-1]
    given = {"model": model, "booster": booster, "file": file}[form]
    assert refusal(VerificationError, CompiledForest(given).fit, X) == (
        f"row 299 of X: {method} gives {(expected + 1).tolist()!r}, expected "
        f"{expected.tolist()!r}. Please report this model, and use the source model's "
        "own predict until it is fixed."
    )


@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
def test_a_sum_of_zeros_may_have_either_sign(reduction):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = xgb.XGBRegressor(n_estimators=3, base_score=-0.0).fit(X, np.full(60, -0.0))
    assert np.signbit(model.predict(X)).all()
    fast = CompiledForest(model, tuning="off", reduction=reduction).fit(X)
    assert (fast.predict(X) == 0).all()


def test_fast_sums_may_differ_by_the_limit_only(monkeypatch):
    lie(monkeypatch, row=0, factor=1.01)
    with pytest.raises(VerificationError):
        CompiledForest(FITTED, reduction="fast").fit(X)


# ------------------------------------------------------------- several sizes


def lie_at(monkeypatch, size, kind=None):
    """Make kernels, or those of one schedule's ``kind``, change a batch's last row."""
    honest = kernels.Kernel.__call__
    made = kernels.KernelCache.kernel

    def kernel(self, schedule, element):
        found = made(self, schedule, element)
        found.schedule = schedule
        return found

    def lying(self, rows, result, threads):
        honest(self, rows, result, threads)
        if len(rows) == size and kind in (None, getattr(self, "schedule", None)):
            result[-1] = np.nextafter(result[-1], 9)

    monkeypatch.setattr(kernels.KernelCache, "kernel", kernel)
    monkeypatch.setattr(kernels.Kernel, "__call__", lying)


BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
TABLE = {(1, 1): Schedule(), (2, 40): BLOCKS, (41, None): BLOCKS}


@pytest.fixture(params=["model", "file"])
def source(request, tmp_path):
    """Return a fitted model, and the same as a file."""
    model = xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    model.save_model(tmp_path / "model.json")
    return model if request.param == "model" else tmp_path / "model.json"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", [1, 2, 21, 40, 41, 57, 79])
def test_ranges_are_checked_at_both_ends_and_between(monkeypatch, source, size):
    lie_at(monkeypatch, size)
    fitted = []

    def both():
        fitted.append(CompiledForest(source, schedule=TABLE).fit(X))
        fitted[0].warm_up()

    text = refusal(VerificationError, both)
    schedule = Schedule() if size == 1 else BLOCKS
    assert f"with batches of {size} and the schedule {schedule!r}." in text
    assert len(fitted) == (size > 1)  # fit compiles the kernel of the smallest batches


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", ["fitted", "pickled", "loaded"])
@pytest.mark.parametrize("size", [2, 21, 40])
def test_a_wrong_kernel_never_answers(monkeypatch, source, tmp_path, size, how):
    right = [CompiledForest(source).fit(X).predict(X[:n]) for n in (1, size, 60)]
    model = CompiledForest(source, schedule=TABLE).fit(X)
    if how == "pickled":
        model = pickle.loads(pickle.dumps(model))
    elif how == "loaded":
        skforge.save(model, tmp_path / "a.skforge")
        model = skforge.load(tmp_path / "a.skforge")
    lie_at(monkeypatch, size, BLOCKS)
    assert np.array_equal(model.predict(X[:1]), right[0])
    with pytest.warns(VerificationWarning) as said:
        found = model.predict(X[:size])
    assert np.array_equal(found, right[1])
    assert f"with batches of {size} and the schedule {BLOCKS!r}." in str(
        said[0].message
    )
    assert len(said) == 1 and said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        for _ in range(3):
            assert np.array_equal(model.predict(X[:size]), right[1])
        # the same code is right about the sizes of the next range
        assert np.array_equal(model.predict(X[:60]), right[2])


@pytest.mark.parametrize("how", ["pickled", "loaded"])
def test_after_loading_the_smallest_batches_are_compared_with_the_forest(
    monkeypatch, source, tmp_path, how
):
    model = CompiledForest(source, schedule=TABLE).fit(X)
    if how == "pickled":
        model = pickle.loads(pickle.dumps(model))
    else:
        skforge.save(model, tmp_path / "a.skforge")
        model = skforge.load(tmp_path / "a.skforge")
        assert model.forest_.n_features == 6  # it is whole, and compares its kernels
    lie_at(monkeypatch, 1)
    for _ in range(2):
        with pytest.raises(VerificationError, match="with batches of 1 and"):
            model.predict(X[:1])


def test_all_rows_of_a_batch_are_compared(monkeypatch, source):
    # more rows than the sample has: they repeat, and the last is one of them
    model = CompiledForest(source, tuning="off").fit(X[:50])
    last = max(last for _, last in model.schedule_ if last is not None)
    lie_at(monkeypatch, last)
    with pytest.raises(VerificationError, match=f"with batches of {last} and"):
        model.warm_up([last])


def test_the_sample_is_freed_with_the_last_kernel():
    model = CompiledForest(FITTED, schedule=TABLE).fit(X)
    kernels = model._predictor.module.kernels
    assert kernels.compiled() == [0] and len(kernels.ranges) > 1
    assert kernels.arrives is not None
    model.warm_up()
    assert kernels.arrives is None


def test_a_large_batch_has_few_values(monkeypatch):
    monkeypatch.setattr(kernel_checks, "MOST_VALUES", 6 * 90)
    forest = CompiledForest(FITTED, tuning="off").fit(X).forest_
    sizes = [
        kernel_checks.batch_sizes(forest, batch, BLOCKS)
        for batch in ((1, 1000), (1001, None))
    ]
    # the first size of a range is the only one that cannot be made smaller
    assert sizes == [[1, 25, 47], [1001]]
