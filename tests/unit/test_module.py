"""compile_forest and CompiledModule: dispatch, rows of every kind, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from skforge.compiler.driver import MIR_PASSES
from skforge.compiler.target import Target
from skforge.engine import shares as module_shares
from skforge.exceptions import InvalidInputError, ScheduleError, TargetError
from skforge.frontends import load_forest
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import bitsliced_schedule, tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest
from tests.refusals import error_of

FOREST = forest("scalar")
MODULE = compile_forest(FOREST)
ROWS = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)


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
        said = error_of(InvalidInputError, getattr(MODULE, method), ROWS, **{name: 1})
        assert said == f"{method} takes no {name}; {advice}."
        assert error_of(TypeError, getattr(MODULE, method), ROWS, n_job=1) == (
            f"{method}() got an unexpected keyword argument 'n_job'"
        )


def test_a_module_says_where_predict_proba_is() -> None:
    assert not hasattr(MODULE, "predict_proba")
    assert error_of(AttributeError, getattr, MODULE, "predict_proba") == (
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
    "one row alone": (ROWS[0],
        "rows must be two-dimensional, with one row per sample. Got shape (5,) "
        "instead. Use X.reshape(1, -1) for one row."),
    "no rows": ([],
        "rows must be two-dimensional, with one row per sample. Got shape (0,) "
        "instead. Give at least one row."),
    "three dimensions": (ROWS[None],
        "rows must be two-dimensional, with one row per sample. Got shape (1, 50, 5) "
        "instead. Use X.reshape(1, -1) to make one row of each X[i]."),
    "nothing": (None,
        "rows are None; pass an array or a data frame of shape (n_rows, 5)."),
    "a dict": ({"a": [1.0]},
        "rows are a dict; pass pandas.DataFrame(rows), with its columns in the order "
        "of training."),
    "dicts": ([{"a": 1.0}],
        "rows are a list of dicts; pass pandas.DataFrame(rows), with its columns in "
        "the order of training."),
    "a path": ("rows.csv",
        "rows are the text or path 'rows.csv'; read the file, then pass an array or "
        "a data frame of shape (n_rows, 5)."),
    "a generator": ((row for row in ROWS),
        "rows are of type generator, which is not a table; pass an array or a data "
        "frame of shape (n_rows, 5)."),
    "a set": ({1.0, 2.0},
        "rows are of type set, which is not a table; pass an array or a data frame "
        "of shape (n_rows, 5)."),
    "unequal rows": ([[1, 2, 3, 4, 5], [1, 2]],
        "rows do not form a rectangular array: row 0 has 5 values and row 1 has 2; "
        "pass NaN where a value is missing."),
    "too few columns": (ROWS[:, :4],
        "the model was trained on 5 features, but the rows have 4 columns."),
    "no rows of too many columns": (np.zeros((0, 6), np.float32),
        "the model was trained on 5 features, but the rows have 6 columns."),
    "strings": (np.array([["a"] * 5]), f"row 0 has 'a' in column 0; {ENCODE}"),
    "bytes": (np.zeros((2, 5), "S3"), f"row 0 has b'' in column 0; {ENCODE}"),
    "dates": (np.zeros((2, 5), "M8[s]"),
        f"row 0 has 1970-01-01T00:00:00 in column 0; {ENCODE}"),
    "objects that are no numbers": (
        np.array([[None, 1, "2", 3, 4], [0, 1, 2, "a", "b"]], object),
        f"row 1 has 'a' in column 3; {ENCODE}",
    ),
    "complex numbers": (ROWS.astype(np.complex128),
        "rows are complex numbers; pass real numbers."),
    "sparse rows with an entry twice": (
        sparse.csr_matrix((np.ones(2), [1, 1], [0, 2]), shape=(1, 5)),
        "the sparse rows have several entries for the same place; add them up with "
        "X.sum_duplicates(), or keep only one of them.",
    ),
    "sparse rows of another width": (sparse.csr_matrix((2, 4)),
        "the model was trained on 5 features, but the rows have 4 columns."),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_that_are_none_are_refused(kind: str) -> None:
    rows, message = REFUSED[kind]
    for call in (MODULE.predict_raw, MODULE.predict, MODULE.apply):
        assert error_of(InvalidInputError, call, rows) == message


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
    "a list": ({"schedule": [S]}, InvalidInputError,
        "schedule must be a Schedule, a preset's name, a dict of batch ranges to "
        "these, or None; got list."),
    "true for a number": ({"schedule": {(True, 2): S}}, ScheduleError,
        "(True, 2)" + RANGE),
    "empty table": ({"schedule": {}}, ScheduleError,
        "the dict of batch ranges has no schedule; give at least one."),
    "number for a range": ({"schedule": {1: S}}, ScheduleError, "1" + RANGE),
    "empty range": ({"schedule": {(5, 2): S}}, ScheduleError, "(5, 2)" + RANGE),
    "negative range": ({"schedule": {(-1, 2): S}}, ScheduleError, "(-1, 2)" + RANGE),
    "no schedule": ({"schedule": {(1, None): 2}}, ScheduleError,
        "the batch range (1, None) must have a Schedule or a preset's name, not an "
        "int."),
    "overlap": ({"schedule": {(3, None): S, (1, 5): S}}, ScheduleError,
        "the batch ranges [(1, 5), (3, None)] overlap; give each batch size only one "
        "schedule."),
    "overlap of an open range": ({"schedule": {(1, None): S, (8, 9): S}}, ScheduleError,
        "the batch ranges [(1, None), (8, 9)] overlap; give each batch size only one "
        "schedule."),
    "reduction": ({"reduction": "quick"}, InvalidInputError,
        "reduction must be one of exact, reproducible, fast. Got 'quick' instead."),
    "no threads": ({"n_jobs": 0}, InvalidInputError, N_JOBS.format(0)),
    "named threads": ({"n_jobs": "all"}, InvalidInputError, N_JOBS.format("'all'")),
    "half a thread": ({"n_jobs": 0.5}, InvalidInputError, N_JOBS.format(0.5)),
    "other machine": ({"target": OTHER}, TargetError,
        f"Code for {OTHER.arch} does not run on this {HOST.arch} machine; use "
        f"target='cpu', or compile on an {OTHER.arch} machine."),
    "CPU's schedule": ({"schedule": Schedule().parallel("batch"), "target": "emulated"},
        ScheduleError,
        'the schedule Schedule().parallel("batch") maps no loop to a GPU, but the '
        "target is 'emulated'; use gpu_dimension, or target='cpu'."),
    "GPU's schedule": ({"schedule": Schedule().gpu_dimension("batch", "grid.x")},
        ScheduleError,
        'gpu_dimension("batch", "grid.x") maps a loop to a GPU, but the target is a '
        "CPU.\n"
        "  for batch in 0 to n_rows:   grid.x        <-- here\n"
        "    for tree in 0 to 7:"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_named(kind: str) -> None:
    arguments, error_type, message = WRONG[kind]
    assert error_of(error_type, compile_forest, FOREST, **arguments) == message


def test_wrong_n_jobs_of_a_call() -> None:
    for wrong in (0, "two"):
        said = error_of(InvalidInputError, MODULE.predict_raw, ROWS, n_jobs=wrong)
        assert said == N_JOBS.format(repr(wrong))


def test_what_is_no_model_is_refused_as_it_is_read() -> None:
    for wrong in ("absent.json", 3, None, Schedule()):
        with pytest.raises((ValueError, OSError)) as read:
            load_forest(wrong)
        assert error_of(type(read.value), compile_forest, wrong) == str(read.value)


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


def test_an_unknown_level_is_refused_with_all_known_ones() -> None:
    error = error_of(InvalidInputError, MODULE.inspect, "cuda")
    passes = ", ".join(step.name for step in MIR_PASSES)
    assert error == (
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
