"""Contributions by GPU kernels, run on the CPU: the bits of the CPU's own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from xgboost import XGBClassifier, XGBRegressor

from skforge import CompiledForest, compile_forest
from skforge.exceptions import ScheduleError
from skforge.gpu.defaults import gpu_contribution_schedule
from skforge.schedule import families
from tests.gpu_kernels import needs
from tests.simt import EMULATED_SOURCE

RNG = np.random.default_rng(7)
X = RNG.normal(size=(150, 6)).astype(np.float32)
TARGET = np.nan_to_num(X[:, 0] * 2 + X[:, 1] * X[:, 2])
CLASSES = (TARGET > 0) * 1 + (TARGET > 1)
X[::9, 2] = np.nan

MODELS = {
    "regressor": lambda: XGBRegressor(n_estimators=8, max_depth=5).fit(X, TARGET),
    "classes": lambda: XGBClassifier(n_estimators=4, max_depth=3).fit(X, CLASSES),
    "vector leaves": lambda: RandomForestRegressor(4, max_depth=6, random_state=0).fit(
        X, np.stack([TARGET, -TARGET + X[:, 3]], axis=1)
    ),
    "probabilities": lambda: RandomForestClassifier(4, max_depth=6, random_state=0).fit(
        X, CLASSES
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.sampled(2)
def test_a_thread_a_row_gives_the_bits_of_the_cpu(model):
    gpu, cpu = compile_forest(model, target="emulated"), compile_forest(model)
    for n in (1, 127, 150):
        found, wanted = gpu.predict_contribs(X[:n]), cpu.predict_contribs(X[:n])
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_the_text_of_the_kernel_does_the_same():
    for kind in ("classes", "vector leaves"):
        model = MODELS[kind]()
        gpu = compile_forest(model, target=EMULATED_SOURCE)
        wanted = compile_forest(model).predict_contribs(X)
        np.testing.assert_array_equal(gpu.predict_contribs(X), wanted)


@pytest.mark.sampled(2)
def test_rows_of_a_thread_do_not_change_bits(model):
    cpu = compile_forest(model).predict_contribs(X)
    schedule = gpu_contribution_schedule(32)
    gpu = compile_forest(model, target="emulated", contribs_schedule=schedule)
    np.testing.assert_array_equal(gpu.predict_contribs(X), cpu)


@pytest.mark.sampled(2)
def test_other_values_come_from_the_cpu(model):
    gpu, cpu = compile_forest(model, target="emulated"), compile_forest(model)
    for options in ({"interactions": True}, {"approximate": True}, {"background": X}):
        found = gpu.predict_contribs(X[:5], **options)
        np.testing.assert_array_equal(found, cpu.predict_contribs(X[:5], **options))


def test_the_text_of_the_kernel_is_shown():
    module = compile_forest(MODELS["regressor"](), target="emulated")
    assert "__global__" in module.inspect("cuda", method="contributions")
    assert "block.x" in module.inspect("mir", method="contributions")
    needs("cuda")
    assert ".entry" in module.inspect("ptx", method="contributions")


def test_an_estimator_explains_with_its_target():
    fast = CompiledForest(
        MODELS["regressor"](), target="emulated", tuning="off", prefit=True
    ).fit(X)
    np.testing.assert_allclose(
        fast.predict_contribs(X).sum(axis=1), fast.predict_raw(X), rtol=0, atol=1e-5
    )


@pytest.mark.sampled(2)
def test_a_thread_takes_several_rows(model):
    rows = families.rows_on_threads(32, each=4).schedule.represent("contributions")
    gpu = compile_forest(model, target="emulated", contribs_schedule=rows)
    wanted = compile_forest(model).predict_contribs(X[:50])
    np.testing.assert_array_equal(gpu.predict_contribs(X[:50]), wanted)


def test_other_loops_over_trees_and_codes_are_refused():
    rows = families.rows_on_threads(32).schedule
    for made in (
        families.rows_on_threads(32, parts=4).schedule,
        families.rows_on_threads(32, tile=2).schedule,
        families.trees_on_threads(2, 32).schedule,
        *(rows.unroll("tree"), rows.interleave("tree", 2), rows.quantize("b0")),
    ):
        schedule = made.represent("contributions")
        with pytest.raises(ScheduleError, match="explains a row's values in each"):
            compile_forest(
                MODELS["regressor"](), target="emulated", contribs_schedule=schedule
            )


def test_a_schedule_of_contributions_does_not_predict():
    with pytest.raises(ScheduleError, match="computes contributions, not predictions"):
        compile_forest(
            MODELS["regressor"](),
            target="emulated",
            schedule=gpu_contribution_schedule(),
        )
