"""compile_forest and CompiledModule: dispatch, rows of every kind, refusals."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from skforge import CompiledForest
from skforge.compiler.driver import MIR_PASSES
from skforge.compiler.forest.reference import reference_leaves, reference_raw
from skforge.compiler.frontends import load_forest
from skforge.compiler.runtime import compiling
from skforge.compiler.runtime import shares as module_shares
from skforge.compiler.runtime.kernels import KernelCache
from skforge.compiler.runtime.module import compile_forest
from skforge.compiler.schedule.families import bitsliced_schedule, tiled_schedule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, ScheduleError, TargetError
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import drawn, forest

FOREST = forest("scalar")
MODULE = compile_forest(FOREST)
ROWS = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)


# ---------------------------------------------------------------- rows that are taken


def _view_of_wider_rows() -> np.ndarray:
    wide = np.full((100, 20), np.nan, np.float32)
    wide[::2, 3:8] = ROWS
    return wide[::2, 3:8]


def _unaligned() -> np.ndarray:
    raw = np.zeros(ROWS.nbytes + 1, np.uint8)
    rows = raw[1:].view(np.float32).reshape(ROWS.shape)
    rows[:] = ROWS
    assert not rows.flags.aligned
    return rows


def _of_records() -> np.ndarray:
    """Rows 21 bytes apart: no whole number of elements."""
    records = np.zeros(50, dtype=[("x", "f4", (5,)), ("y", "u1")])
    records["x"] = ROWS
    return records["x"]


def _read_only() -> np.ndarray:
    rows = ROWS.copy()
    rows.flags.writeable = False
    return rows


def _frame(columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


TAKEN: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: ROWS,
    "view of wider rows": _view_of_wider_rows,
    "rows backwards": lambda: ROWS[::-1],
    "columns backwards": lambda: ROWS[:, ::-1],
    "every other column": lambda: np.repeat(ROWS, 2, axis=1)[:, ::2],
    "Fortran order": lambda: np.asfortranarray(ROWS),
    "one row repeated": lambda: np.broadcast_to(ROWS[0], (9, 5)),
    "unaligned": _unaligned,
    "rows of records": _of_records,
    "read-only": _read_only,
    "other byte order": lambda: ROWS.astype(ROWS.dtype.newbyteorder()),
    "float64": lambda: ROWS.astype(np.float64) + 1e-9,
    "float64 too large for float32": lambda: np.full((3, 5), 1e300),
    "float16": lambda: ROWS.astype(np.float16),
    "longdouble": lambda: ROWS.astype(np.longdouble),
    "int64": lambda: (ROWS * 3).astype(np.int64),
    "int64 beyond 2**24": lambda: np.full((3, 5), (1 << 24) + 1),
    "uint8": lambda: np.abs(ROWS * 3).astype(np.uint8),
    "bool": lambda: ROWS > 0,
    "objects": lambda: ROWS.astype(object),
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


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        *(
            (
                rounds,
                "compile load_forest(model, iteration_range=(begin, end)), which reads "
                "the boosting rounds of your choice",
            )
            for rounds in ("iteration_range", "num_iteration", "ntree_limit")
        ),
        ("output_margin", "call predict_raw"),
        ("raw_score", "call predict_raw"),
        ("pred_leaf", "call apply"),
        ("pred_contribs", "call predict_contribs"),
    ],
)
def test_arguments_of_the_libraries_have_an_advice(name: str, advice: str) -> None:
    for method in ("predict", "predict_raw"):
        with pytest.raises(InvalidInputError) as error:
            getattr(MODULE, method)(ROWS, **{name: 1})
        assert str(error.value) == f"{method} takes no {name}; {advice}."
        with pytest.raises(TypeError) as unknown:
            getattr(MODULE, method)(ROWS, n_job=1)
        assert str(unknown.value) == (
            f"{method}() got an unexpected keyword argument 'n_job'"
        )


def test_a_module_says_where_predict_proba_is() -> None:
    assert not hasattr(MODULE, "predict_proba")
    with pytest.raises(AttributeError) as error:
        MODULE.predict_proba(ROWS)
    assert str(error.value) == (
        "'CompiledModule' object has no attribute 'predict_proba'; its predict returns "
        "what a Booster's does, the probabilities of a classifier, and CompiledForest "
        "has the methods of scikit-learn"
    )
    with pytest.raises(AttributeError) as error:
        MODULE.fit  # noqa: B018
    assert str(error.value) == "'CompiledModule' object has no attribute 'fit'"


# --------------------------------------------------------------- rows that are refused

ENCODE = "encode texts, dates and categories as numbers the way the model was trained."
REFUSED: dict[str, tuple[Any, str]] = {
    "one row alone": (
        ROWS[0],
        "rows must be two-dimensional, with one row per sample. Got shape (5,) "
        "instead. Use X.reshape(1, -1) for one row.",
    ),
    "no rows": (
        [],
        "rows must be two-dimensional, with one row per sample. Got shape (0,) "
        "instead. Give at least one row.",
    ),
    "three dimensions": (
        ROWS[None],
        "rows must be two-dimensional, with one row per sample. Got shape (1, 50, 5) "
        "instead. Use X.reshape(1, -1) to make one row of each X[i].",
    ),
    "nothing": (
        None,
        "rows are None; pass an array or a data frame of shape (n_rows, 5).",
    ),
    "a dict": (
        {"a": [1.0]},
        "rows are a dict; pass pandas.DataFrame(rows), with its columns in the order "
        "of training.",
    ),
    "dicts": (
        [{"a": 1.0}],
        "rows are a list of dicts; pass pandas.DataFrame(rows), with its columns in "
        "the order of training.",
    ),
    "a path": (
        "rows.csv",
        "rows are the text or path 'rows.csv'; read the file, then pass an array or a "
        "data frame of shape (n_rows, 5).",
    ),
    "a generator": (
        (row for row in ROWS),
        "rows are of type generator, which is not a table; pass an array or a data "
        "frame of shape (n_rows, 5).",
    ),
    "a set": (
        {1.0, 2.0},
        "rows are of type set, which is not a table; pass an array or a data frame of "
        "shape (n_rows, 5).",
    ),
    "unequal rows": (
        [[1, 2, 3, 4, 5], [1, 2]],
        "rows do not form a rectangular array: row 0 has 5 values and row 1 has 2; "
        "pass NaN where a value is missing.",
    ),
    "too few columns": (
        ROWS[:, :4],
        "the model was trained on 5 features, but the rows have 4 columns.",
    ),
    "no rows of too many columns": (
        np.zeros((0, 6), np.float32),
        "the model was trained on 5 features, but the rows have 6 columns.",
    ),
    "strings": (
        np.array([["a"] * 5]),
        f"row 0 has 'a' in column 0; {ENCODE}",
    ),
    "bytes": (
        np.zeros((2, 5), "S3"),
        f"row 0 has b'' in column 0; {ENCODE}",
    ),
    "dates": (
        np.zeros((2, 5), "M8[s]"),
        f"row 0 has 1970-01-01T00:00:00 in column 0; {ENCODE}",
    ),
    "objects that are no numbers": (
        np.array([[None, 1, "2", 3, 4], [0, 1, 2, "a", "b"]], object),
        f"row 1 has 'a' in column 3; {ENCODE}",
    ),
    "complex numbers": (
        ROWS.astype(np.complex128),
        "rows are complex numbers; pass real numbers.",
    ),
    "sparse rows with an entry twice": (
        sparse.csr_matrix((np.ones(2), [1, 1], [0, 2]), shape=(1, 5)),
        "the sparse rows have several entries for the same place; add them up with "
        "X.sum_duplicates(), or keep only one of them.",
    ),
    "sparse rows of another width": (
        sparse.csr_matrix((2, 4)),
        "the model was trained on 5 features, but the rows have 4 columns.",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_that_are_none_are_refused(kind: str) -> None:
    rows, message = REFUSED[kind]
    for call in (MODULE.predict_raw, MODULE.predict, MODULE.apply):
        with pytest.raises(InvalidInputError) as error:
            call(rows)
        assert str(error.value) == message


def test_rows_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"^rows do not form a rectangular array: "
    ):
        MODULE.predict_raw([[1, 2], [3]])


# ------------------------------------------------------------------- bad arguments

S = Schedule()
RANGE = (
    " is not a batch range; a key is (first, last), both included and 0 or more, or "
    "(first, None) for all batches of at least first rows."
)
N_JOBS = (
    "n_jobs must be None (one thread), a positive number of threads, or negative to "
    "count from all cores: -1 is all. Got {} instead."
)
HOST = Target.host()
OTHER = Target.x86_64() if HOST.arch == "aarch64" else Target.aarch64()

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a list": (
        {"schedule": [S]},
        InvalidInputError,
        "schedule must be a Schedule, a preset's name, a dict of batch ranges to "
        "these, or None; got list.",
    ),
    "true for a number": (
        {"schedule": {(True, 2): S}},
        ScheduleError,
        "(True, 2)" + RANGE,
    ),
    "empty table": (
        {"schedule": {}},
        ScheduleError,
        "the dict of batch ranges has no schedule; give at least one.",
    ),
    "number for a range": ({"schedule": {1: S}}, ScheduleError, "1" + RANGE),
    "empty range": ({"schedule": {(5, 2): S}}, ScheduleError, "(5, 2)" + RANGE),
    "negative range": ({"schedule": {(-1, 2): S}}, ScheduleError, "(-1, 2)" + RANGE),
    "no schedule": (
        {"schedule": {(1, None): 2}},
        ScheduleError,
        "the batch range (1, None) must have a Schedule or a preset's name, not an "
        "int.",
    ),
    "overlap": (
        {"schedule": {(3, None): S, (1, 5): S}},
        ScheduleError,
        "the batch ranges [(1, 5), (3, None)] overlap; give each batch size only one "
        "schedule.",
    ),
    "overlap of an open range": (
        {"schedule": {(1, None): S, (8, 9): S}},
        ScheduleError,
        "the batch ranges [(1, None), (8, 9)] overlap; give each batch size only one "
        "schedule.",
    ),
    "reduction": (
        {"reduction": "quick"},
        InvalidInputError,
        "reduction must be one of exact, reproducible, fast. Got 'quick' instead.",
    ),
    "no threads": ({"n_jobs": 0}, InvalidInputError, N_JOBS.format(0)),
    "named threads": ({"n_jobs": "all"}, InvalidInputError, N_JOBS.format("'all'")),
    "half a thread": ({"n_jobs": 0.5}, InvalidInputError, N_JOBS.format(0.5)),
    "other machine": (
        {"target": OTHER},
        TargetError,
        f"Code for {OTHER.arch} does not run on this {HOST.arch} machine; use "
        f"target='cpu', or compile on an {OTHER.arch} machine.",
    ),
    "CPU's schedule": (
        {"schedule": Schedule().parallel("batch"), "target": "emulated"},
        ScheduleError,
        'the schedule Schedule().parallel("batch") maps no loop to a GPU, but the '
        "target is 'emulated'; use gpu_dimension, or target='cpu'.",
    ),
    "GPU's schedule": (
        {"schedule": Schedule().gpu_dimension("batch", "grid.x")},
        ScheduleError,
        'gpu_dimension("batch", "grid.x") maps a loop to a GPU, but the target is a '
        "CPU.\n"
        "  for batch in 0 to n_rows:   grid.x        <-- here\n"
        "    for tree in 0 to 7:",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_named(kind: str) -> None:
    arguments, error_type, message = WRONG[kind]
    with pytest.raises(error_type) as error:
        compile_forest(FOREST, **arguments)
    assert str(error.value) == message


def test_wrong_n_jobs_of_a_call() -> None:
    for wrong in (0, "two"):
        with pytest.raises(InvalidInputError) as error:
            MODULE.predict_raw(ROWS, n_jobs=wrong)  # type: ignore[arg-type]
        assert str(error.value) == N_JOBS.format(repr(wrong))


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


def test_what_is_no_model_is_refused_as_it_is_read() -> None:
    for wrong in ("absent.json", 3, None, Schedule()):
        with pytest.raises((ValueError, OSError)) as read:
            load_forest(wrong)
        with pytest.raises(type(read.value)) as error:
            compile_forest(wrong)
        assert str(error.value) == str(read.value)


# ------------------------------------------------------------------------ dispatch


def test_each_batch_size_runs_the_schedule_of_its_range(monkeypatch) -> None:
    one, few, many = S.interleave("tree", 2), S, S.reorder("tree", "batch")
    table = {(1, 1): one, (2, 15): few, (40, None): many}
    module = compile_forest(FOREST, table)
    ran = []
    lowered = KernelCache.lowered

    def watched(self, schedule, element):
        ran.append(schedule)
        return lowered(self, schedule, element)

    monkeypatch.setattr(KernelCache, "lowered", watched)
    rows, raw, _ = expected("scalar")
    for n, schedule in ((0, one), (1, one), (2, few), (15, few), (16, few), (40, many)):
        assert module.schedule_for(n) == schedule
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], n)
    assert ran == [one, few, many]  # each compiled when first needed, and once


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


def test_calls_from_many_threads_at_once() -> None:
    """All start with nothing compiled; every answer has the same bits."""
    module = compile_forest(forest("multiclass"))
    rows, raw, leaves = expected("multiclass")
    start, wrong = threading.Barrier(8), []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        start.wait()
        for n in random.integers(0, 200, size=20):
            right = module.predict_raw(rows[:n]).tobytes() == raw[:n].tobytes()
            if seed % 2:
                right &= module.apply(rows[:n]).tobytes() == leaves[:n].tobytes()
            if not right:
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(module.compiler._kernels) <= 2 * len(set(module.schedules.values()))


def test_small_work_stays_on_the_calling_thread(monkeypatch) -> None:
    monkeypatch.setattr(module_shares, "thread_limit", lambda: None)
    made = drawn(100, 8, shape="full")
    module = compile_forest(made, n_jobs=8)
    assert [module.threads(n) for n in (0, 1, 2)] == [1, 1, 1]
    assert module.threads(100_000) == 8
    assert module._share(100_000, 3).threads == 3
    assert compile_forest(made).threads(100_000) == 1
    # blocks of tiles have as many rows as give every thread one
    tiles = compile_forest(made, tiled_schedule(512), n_jobs=8)
    assert tiles.threads(512) == 8


def test_leaf_numbers_have_threads_of_their_own(monkeypatch) -> None:
    """They come from another forest, which writes a number for each tree."""
    monkeypatch.setattr(module_shares, "thread_limit", lambda: None)
    module = compile_forest(drawn(100, 8), bitsliced_schedule(512), n_jobs=2)

    def shared_from(threads: Any) -> int:
        return next(2**i for i in range(24) if threads(2**i) == 2)

    leaves = shared_from(lambda n: module._leaf_shares.of(n, 2).threads)
    assert leaves < shared_from(module.threads)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_thread_compiles_can_compile() -> None:
    module = compile_forest(FOREST, S)
    held, done = threading.Event(), threading.Event()

    def compiling() -> None:
        with module.compiler.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=compiling)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        # Python warns of what this test is about
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(60)  # a deadlock ends the child, not the test run
        right = module.predict_raw(ROWS).tobytes()
        os._exit(0 if right == reference_raw(FOREST, ROWS).tobytes() else 1)
    done.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert status == 0


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


def test_an_unknown_level_is_refused_with_all_known_ones() -> None:
    with pytest.raises(InvalidInputError) as error:
        MODULE.inspect("cuda")
    passes = ", ".join(step.name for step in MIR_PASSES)
    assert str(error.value) == (
        f"level must be one of schedule, loops, hir, mir, lir, lower-to-mir, {passes}, "
        "lower-to-lir, simplify, llvm, asm. Got 'cuda' instead."
    )


def test_inspect_takes_the_batch_size_that_is_meant() -> None:
    module = compile_forest(FOREST, {(1, 1): S, (2, None): S.cache("batch")})
    assert module.inspect("schedule", n_rows=1) == "Schedule()"
    assert module.inspect("schedule") == 'Schedule().cache("batch")'


@pytest.mark.parametrize("n_rows", ["many", 1.5, True, -1])
def test_inspect_refuses_what_is_no_batch_size(n_rows) -> None:
    with pytest.raises(InvalidInputError, match="n_rows must be a number of rows"):
        MODULE.inspect("schedule", n_rows=n_rows)
