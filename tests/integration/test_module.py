"""Tests of ``unit/test_module.py`` that compile or start processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from skforge import CompiledForest
from skforge.engine import compiling
from skforge.engine.kernels import KernelCache
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import forest
from tests.noted import calls_of
from tests.row_layouts import converted, strided
from tests.unit.test_module import FOREST, MODULE, ROWS, S

# ---------------------------------------------------------------- rows that are taken


def _frame(columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


TAKEN: dict[str, Callable[[], Any]] = {
    **strided(ROWS),
    **converted(ROWS),
    "float64": lambda: ROWS.astype(np.float64) + 1e-9,
    "float64 too large for float32": lambda: np.full((3, 5), 1e300),
    "int64 beyond 2**24": lambda: np.full((3, 5), (1 << 24) + 1),
    "uint8": lambda: np.abs(ROWS * 3).astype(np.uint8),
    "list of lists": lambda: ROWS.tolist(),
    "no rows": lambda: ROWS[:0],
    "no rows of float64": lambda: np.asfortranarray(ROWS[:0].astype(np.float64)),
    "data frame": lambda: _frame(ROWS),
    "data frame of kinds": lambda: _frame(
        {"a": [1, 2], "b": [0.5, 2], "c": [True, False], "d": [3, 4], "e": [1, np.nan]}
    ),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_rows_of_any_layout_and_number_type(kind: str) -> None:
    rows = TAKEN[kind]()
    before = np.array(rows, np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw, leaves = MODULE.predict_raw(rows), MODULE.apply(rows)
    assert_same_bits(raw, reference_raw(FOREST, rows)[:, 0], kind)
    wanted = FOREST.source_node[reference_leaves(FOREST, rows)]
    assert_same_bits(leaves, wanted, kind)
    # nothing was written
    np.testing.assert_array_equal(np.array(rows, np.float64), before)


def test_double_rows_are_not_rounded_to_floats() -> None:
    made = forest("double")
    threshold = made.threshold[0]
    rows = np.full((3, made.n_features), threshold)
    rows[1:] = [[np.nextafter(threshold, -np.inf)], [np.nextafter(threshold, np.inf)]]
    module = compile_forest(made)
    for given in (rows, np.asfortranarray(rows), rows.astype(object)):
        raw = module.predict_raw(given)
        assert_same_bits(raw, reference_raw(made, rows)[:, 0], "double")


def test_the_sources_marker_of_missing_values_is_one() -> None:
    made = forest("marked missing")
    module = compile_forest(made)
    rows, raw, _ = expected("marked missing")
    assert (rows == -1).any()
    as_nan = np.where(rows == -1, np.float32(np.nan), rows)
    assert_same_bits(raw_of(module, rows), raw, "marker")
    assert_same_bits(raw_of(module, as_nan), raw, "NaN")


def test_models_files_and_names_are_taken_as_an_estimator_takes_them(tmp_path) -> None:
    xgb = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(size=(99, 3)).astype(np.float32)
    model = xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(X, X[:, 0])
    model.save_model(tmp_path / "model.json")
    margin = model.predict(X, output_margin=True)
    read = load_forest(model)
    text = str(tmp_path / "model.json")
    for source in (model, model.get_booster(), tmp_path / "model.json", text, read):
        assert_same_bits(compile_forest(source).predict_raw(X), margin, "margins")
    preset = Schedule.preset("xgboost")
    for schedule, table in (
        ("xgboost", {(1, None): preset}),
        (preset, {(1, None): preset}),
        ({(np.int64(1), 8): "xgboost", (9, None): S}, {(1, 8): preset, (9, None): S}),
        ("auto", compile_forest(read).schedules),
        (None, compile_forest(read).schedules),
    ):
        module = compile_forest(read, schedule)
        compiled = CompiledForest(model, schedule=schedule or "auto", tuning="off")
        assert module.schedules == compiled.fit(X).schedule_ == table
        assert_same_bits(module.predict_raw(X), margin, "margins")


# ------------------------------------------------------------------------ dispatch


def test_each_batch_size_runs_the_schedule_of_its_range(monkeypatch) -> None:
    one, few, many = S.interleave("tree", 2), S, S.reorder("tree", "batch")
    table = {(1, 1): one, (2, 15): few, (40, None): many}
    module = compile_forest(FOREST, table)
    ran = calls_of(monkeypatch, KernelCache, "lowered")
    rows, raw, _ = expected("scalar")
    for n, schedule in ((0, one), (1, one), (2, few), (15, few), (16, few), (40, many)):
        assert module.schedule_for(n) == schedule
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], n)
    # Each is compiled when first needed, and once.
    assert [call[1] for call in ran] == [one, few, many]


def test_equal_schedules_share_a_kernel() -> None:
    module = compile_forest(FOREST, {(1, 4): S, (5, None): Schedule()})
    for n in (1, 6):
        module.predict_raw(ROWS[:n])
    kernels = {id(kernel) for kernel in module.kernels._ready.values()}
    assert len(module.kernels._ready) == 2
    assert len(kernels) == 1


def test_compile_all_leaves_nothing_to_compile(monkeypatch) -> None:
    module = compile_forest(FOREST)
    assert module.compile_all() > 0
    monkeypatch.setattr(compiling, "compile_functions", None)
    rows, raw, _ = expected("scalar")
    for n in (1, 2, 63, 1000):
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], n)


@pytest.mark.parametrize("reduction", ["exact", "fast", "reproducible"])
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 3"])
def test_batches_too_big_for_their_scratch_run_in_parts(
    name: str, reduction: str, monkeypatch
) -> None:
    """Trees in parallel keep numbers for each tree and row: too many for memory."""
    schedule = S.reorder("tree", "batch").parallel("tree")
    rows = expected(name)[0][:200]
    whole = raw_of(compile_forest(forest(name), schedule, reduction=reduction), rows)
    monkeypatch.setattr(compiling, "SCRATCH_BYTES", 5000)
    module = compile_forest(forest(name), schedule, reduction=reduction)
    assert_same_bits(raw_of(module, rows), whole, reduction)
    (kernel,) = module.kernels._ready.values()
    assert 8 <= kernel.most_rows <= 128
    assert_same_bits(raw_of(module, rows[::-1], 2)[::-1], whole, "in parts, backwards")


def test_scratch_of_a_block_of_rows_is_no_reason_for_parts() -> None:
    blocks = S.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    for schedule in (S, blocks, blocks.reorder_trees(), blocks.parallel("tree")):
        module = compile_forest(FOREST, schedule)
        module.predict_raw(ROWS)
        (kernel,) = module.kernels._ready.values()
        assert kernel.most_rows is None, schedule


# ---------------------------------------------------------------------- inspection


def test_every_level_can_be_read() -> None:
    module = compile_forest(FOREST, S.tile("batch", "b0", "b1", 8))
    starts = {
        "schedule": 'Schedule().tile("batch", "b0", "b1", 8)',
        "loops": "# 7 trees, sparse\nfor b0 in 0 to n_rows step 8:",
        "hir": "predict_ensemble",
        "lower-to-mir": "predict(rows) -> result[rows, outputs]:\n",
        "mir": "predict(rows) -> result[rows, outputs]:\n",
        "lower-to-lir": "func predict(@rows: f32, %n_rows: i64, %row_stride: i64",
        "lir": "func predict(@rows: f32, %n_rows: i64, %row_stride: i64, @result: f32",
        "llvm": "; ModuleID",
        "asm": "\t.",
    }
    for level, start in starts.items():
        assert module.inspect(level).startswith(start), level
