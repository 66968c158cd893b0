"""Every kind of model, with rows in every form, live and stored, by every method.

The source is the judge: bits, errors and warnings are its own. A case is a kind in one
state, with an eighth of the forms, each by one method. The eight cases of a kind have
all forms, so that any two of kind, form, state and method meet. The fast run samples
cases; the slow run has all of them, and all methods of all forms of tree ensembles.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

pytest.importorskip("catboost")
pytest.importorskip("polars")
pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

import skforge
from skforge import CompiledForest, UnsupportedModelError
from tests import forms, kinds, kinds_of_pipelines
from tests.compared_calls import Call, apart, called
from tests.kinds import OFFERED, Kind
from tests.plain import plain

pytestmark = pytest.mark.doors

FORMS = {
    "numbers": forms.NUMBERS,
    "texts": {"float64": lambda frame: frame, **forms.PASSENGERS},
}
FORMS["texts"] |= {
    f"one row, {name}": lambda frame, make=make: make(frame)[3:4]
    for name, make in FORMS["texts"].items()
}
METHODS = (*OFFERED, "apply", "predict_raw")
#: What models are trained on that knows the names of columns, so that mappings do.
NAMED = ("frame", "frame of gaps", "categories", "passengers")
STATES = ("live", "pickle", "file", "dropped")
#: One of each library has the schedules of an ordinary user; all take rows alike.
DEFAULTS = ("forest of three names", "xgboost of three", "lightgbm of names")
#: Forms that kernels answer, whatever the kind.
ORDINARY = {f"array, {name}" for name in ("float64", "one row", "F-order", "reversed")}
ORDINARY |= {"frame, float64", "frame, one row", "list", "float64", "one row, float64"}

#: Forms that a library takes and its artifact refuses, with a sentence: categories of
#: columns that are none in the model, numbers read wrong or by another rule, names out
#: of order, objects and texts among categories of numbers, rows that name no category,
#: rows of which XGBoost makes a matrix before DART rounds, and numbers that are not
#: finite in columns that no member of a bagging draws.
ORDERS = {f"frame, {name}" for name in forms.FRAMES if "byte order" in name}
CATEGORIES = {f"frame, {name}" for name in forms.FRAMES if "categor" in name}
OBJECTS = {"array, object", "array, object with None", "list with None", "memoryview"}
OBJECTS |= {"list of huge ints", "list of texts", "polars, all texts"}
OBJECTS |= {"frame, object", "frame, text numbers"}
#: Numbers in mappings that categories of CatBoost make objects of.
NO_FLOATS, ODD = (pd.NA, Decimal("40.25"), Fraction(1, 3)), (4, 5, 29)
REFUSED = {
    "xgboost": {"frame, levels of names", "frame, subclass", "polars, lazy", "LIL"}
    | {"polars, other order", "arrow, other order", "CSR, too large for float32"}
    | {"number", "array, big-endian", "frame, Arrow, large ints", "CSR, twice"}
    | {"array, big-endian of float32", "CSR, infinite", "CSR, narrow", "frame, narrow"}
    | {"memoryview", "narrow memoryview"}
    | ORDERS
    | CATEGORIES,
    "lightgbm of categories": {f"polars, {name}" for name in forms.POLARS}
    | {f"arrow, {name}" for name in forms.ARROW},
    "lightgbm": {"frame, twice the same name", "CSR, twice", "array, dates"}
    | {"polars, float32"}
    | ORDERS
    | CATEGORIES,
    "lightgbm, booster": {"array, complex", "memoryview", "array, text"}
    | {"list of texts"},
    "xgboost, booster": {"array, narrow", "polars, narrow", "frame, series"},
    "catboost": {"array, text", "array, complex", "array, one dimension"}
    | {"list of texts", "flat list", "frame, series"}
    | {"CSC", "COO", "LIL", "CSR, ints", "CSR, narrow", "CSR, wide"},
    "catboost of categories": {"array, large int64"},
    "catboost of texts": {"objects of all kinds", *(f"a column, {i}" for i in ODD)}
    | {f"{a} with {v!r}" for a in ("a mapping", "mappings") for v in NO_FLOATS},
    "adaboost": {"array, object with None", "list with None"},
    "xgboost, dart": {"CSC", "COO", "CSR array", "CSR, float32", "arrow, batch"},
    "bagging, some": {"list with infinity"}
    | {f"CSR, {name}" for name in ("NaN", "infinite", "too large for float32")},
    "hist, sets": OBJECTS
    | {"list of large ints", "frame, one sparse column", "frame, category of numbers"}
    | {"array, big-endian", "array, big-endian of float32", "array, longdouble"}
    | {"array, masked", "arrow, gap", "arrow, chunks", "frame, subclass"}
    | {"polars, text", "arrow, text", "arrow, float16 beside others"}
    | {f"frame, {name}" for name in forms.FRAMES if "large" in name}
    | ORDERS,
    "hist of categories": OBJECTS
    | {"array, text", "frame, text column", "frame, texts of categories"}
    | {*forms.LISTS},
}
#: Forms that CatBoost refuses, and its artifact takes for an array of numbers.
TAKEN = {"tuple", "memoryview", "narrow memoryview", "polars, nulls"}
TAKEN |= {"array, no rows", "array, no rows of float32", "polars, all texts"}
TAKEN |= {"CSR, no rows"}
TAKEN |= {"frame, category of numbers", "frame, twice the same name"}
TAKEN |= {f"arrow, {name}" for name in forms.ARROW}
TAKEN |= {name for name in FORMS["texts"] if "table" in name}
#: Forms that an artifact takes for a table, or for an array without rows, also where
#: the library has another warning, dtype or error.
OTHERWISE = ("arrow, batch", "polars, no rows", "frame, no rows")
#: What NumPy warns of, by the flags of the processor.
FLAGS = re.compile(" encountered in ")
Cell = tuple[str, str]


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep sources from waiting for cores that other work has."""
    with threadpool_limits(1), joblib.parallel_config("threading"):
        yield


def one_more_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


@pytest.fixture(autouse=True, scope="module")
def few_threads() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    with one_more_process() as pool:
        yield pool


class Rows:
    """Rows in all forms, each made anew, of a frame of a kind's columns."""

    def __init__(self, kind: Kind, base: Any, named: bool) -> None:
        self._base = base
        self._makers = FORMS["texts" if kind.on == "passengers" else "numbers"]
        self._mapped: dict[str, tuple[Any, Any]] = {}
        if named:
            frame = forms.with_categories(base) if kind.on == "categories" else base
            self._mapped = {name: pair for name, *pair in forms.mapped(frame)}
        self.names = [*self._makers, *self._mapped]

    def made(self, form: str, for_source: bool = False) -> Any:
        """Return rows; the source gets the frame that mappings stand for."""
        if form in self._mapped:
            return self._mapped[form][for_source]
        with np.errstate(all="ignore"):
            return self._makers[form](self._base)

    def is_made(self, form: str) -> bool:
        try:
            self.made(form)
        except (TypeError, ValueError, OverflowError):
            return False  # no such column can be made of these numbers
        return True

    def answers(self, model: Any, cells: list[Cell]) -> list[Call]:
        """Return what calls give."""
        source = not isinstance(model, CompiledForest)
        return [
            called(
                lambda given, method=method: getattr(model, method)(given),
                self.made(form, source),
            )
            for form, method in cells
        ]


def of_pickle(data: bytes, cells: list[Cell], *rows: Any) -> list[Call]:
    """Return the answers of an unpickled model."""
    with threadpool_limits(1):
        return Rows(*rows).answers(pickle.loads(data), cells)


def cells_of(fast: Any, rows: Rows, turn: int | None) -> list[Cell]:
    """Return forms and methods: an eighth of the forms at each turn, or all pairs."""
    methods = [name for name in METHODS if hasattr(fast, name)]
    cells = []
    for place, form in enumerate(rows.names):
        if turn is None:
            cells += [(form, method) for method in methods]
        elif (place + turn) % 8 == 0:
            cells.append((form, methods[(place // 8 + turn) % len(methods)]))
    return [c for c in cells if not is_undefined(*c, fast) and rows.is_made(c[0])]


def is_undefined(form: str, method: str, fast: Any) -> bool:
    """Tell whether a library reads or writes beyond an array.

    XGBoost 3.2 does where it is asked for leaves of too many columns, and to read
    columns of ``longdouble`` in Fortran's order, which some steps make; CatBoost dies
    of texts that Polars holds.
    """
    if "polars" in form and "CatBoost" in repr(fast.estimator):
        hashed = getattr(getattr(fast, "forest_", None), "hashed", None)
        return "text" in form or (bool(hashed) and not form.endswith("polars"))
    if method == "apply":
        return "wide" in form
    return form == "array, longdouble" and hasattr(fast.estimator, "steps")


def differing(ours: Call, theirs: Call, rows: Any) -> str:
    check = "Check failed: n_features"  # before a stack trace
    if check in theirs[1]:
        words = check, "must be two-dimensional"
        alike = any(text in ours[1] for text in words)
        return "" if alike else f"error {ours[1]!r}, not {theirs[1]!r}"
    return apart(ours, theirs, rows)


@contextmanager
def unchecked(wanted: bool) -> Iterator[None]:
    """Let nothing be compared but by the test itself."""
    with pytest.MonkeyPatch.context() as patch:
        if wanted:
            patch.setenv("SKFORGE_CHECK", "off")
        yield


def first(
    fast: Any, rows: Rows, cells: list[Cell]
) -> tuple[dict[Cell, Call], set[Cell]]:
    """Return a model's first answers, and which of them are its library's."""
    live, asked = dict[Cell, Call](), set[Cell]()
    for cell in cells:
        before = fast.counters()["library"]["calls"]
        (live[cell],) = rows.answers(fast, [cell])
        if fast.counters()["library"]["calls"] > before:
            asked.add(cell)
    return live, asked


def compare(
    name: str, state: str, turn: int | None, pool: ProcessPoolExecutor, folder: Path
) -> None:
    """Compare a kind in one state with its source."""
    kind = KINDS[name]
    model = kind.fitted()
    fast = CompiledForest(model, tuning="off") if name in DEFAULTS else plain(model)
    with unchecked(state != "live"):  # what is told of its rows is not compared
        fast.fit(kinds.ROWS[kind.on])
    own = fast if kind.part is not None else model
    for method in OFFERED:
        assert hasattr(own, method) == hasattr(fast, method), method
    if kind.folds:
        assert "runs in" not in fast.inspect("pipeline")
    # XGBoost before 3.1 keeps no names of categories
    named = kind.on != "categories" or any(fast.forest_.category_names)
    how = kind, kinds.base_rows(kind, fast), named and kind.on in NAMED
    rows = Rows(*how)
    cells = cells_of(fast, rows, turn)
    theirs = rows.answers(own, [cell for cell in cells if hasattr(own, cell[1])])
    is_stored = state in ("file", "dropped") and kind.stored
    # a pickle is compared where it is unpickled, and forms where models are live
    some = [c for c in cells if state != "pickle" or not hasattr(own, c[1])]
    with unchecked(is_stored):
        live, asked = first(fast, rows, some)
    told = [text for _, _, texts in live.values() for text in texts]
    wrong = [text for text in told if "Please report this" in text]
    if state in ("file", "dropped") and not is_stored:
        why = "no plain data|Only the members of|Some steps|Parts of this|joblib.dump"
        with pytest.raises(UnsupportedModelError, match=why):
            stored(fast, state, folder)
        state = "live"
    if state == "live":  # once more, as the first call may make an entry
        live = dict(zip(cells, rows.answers(fast, cells), strict=True))
    expected = [theirs.pop(0) if hasattr(own, c[1]) else live[c] for c in cells]
    found = [*live.values()]
    if state == "pickle":
        found = pool.submit(of_pickle, pickle.dumps(fast), cells, *how).result()
        # pickles keep no strides of an axis of one row
        expected = pickle.loads(pickle.dumps(expected))
    elif state != "live":
        # of a kind in a state, two cases store the same
        with unchecked(turn is not None and turn // 4 % 2 > 0):
            other = pickle.loads(pickle.dumps(stored(fast, state, folder)))
        found = rows.answers(other, cells)
    for cell, ours, wanted in zip(cells, found, expected, strict=True):
        (form, method), by_library = cell, cell in asked
        if name in kinds_of_pipelines.MEMBERS:  # threads have flags of their own
            ours = *ours[:2], [text for text in ours[2] if not FLAGS.search(text)]
        if "two jobs" in name:  # threads that outlive an error reset Python's filters
            ours = *ours[:2], wanted[2]
        is_file = state in ("file", "dropped")
        if is_file and form == "arrow, batch":
            ours = *ours[:2], wanted[2]
        if is_file and (wanted[1] or ours[1]):  # errors have words of their own
            may_refuse = form in refused_of(name)
            if name not in kinds.MODELS or method != "predict":
                may_refuse |= by_library
            # scikit-learn would write to the rows of some frames
            may_answer = form in OTHERWISE or "read-only" in wanted[1]
            may_answer |= name.startswith("catboost") and form in TAKEN
            may_answer |= method == "predict_raw" and "no rows" in form  # 0 scores
            may_differ = may_refuse if ours[1] else may_answer
            if bool(wanted[1]) != bool(ours[1]) and not may_differ:
                wrong.append(f"{method}, {form}: {ours[1]!r}, not {wanted[1]!r}")
        elif is_file and form == "polars, no rows":
            continue
        elif difference := differing(ours, wanted, rows.made(form, True)):
            wrong.append(f"{method}, {form}: {difference}")
        elif by_library and not wanted[1] and state == "live" and is_ours(name, *cell):
            wrong.append(f"{method}, {form}: the library was asked")
    assert not wrong, f"{len(wrong)} of {len(cells)} differ:\n" + "\n".join(wrong[:40])


def stored(fast: CompiledForest, state: str, folder: Path) -> CompiledForest:
    if state == "dropped":
        return fast.drop_estimator()
    skforge.save(fast, folder / "model.skforge")
    return skforge.load(folder / "model.skforge")


def is_ours(name: str, form: str, method: str) -> bool:
    """Tell whether kernels are to answer, and not the library."""
    if method == "predict_log_proba" and "bagging" in name:
        return False  # it adds logarithms
    asked = not {method, *form.split(", ")}.isdisjoint(KINDS[name].asks)
    if method not in OFFERED or asked:
        return False
    return form in ORDINARY or (name in ENCODED and form in FORMS["texts"])


def refused_of(name: str) -> set[str]:
    return {form for k, v in REFUSED.items() if name.startswith(k) for form in v}


#: Pipelines whose kernels read texts and numbers in all forms of tables.
ENCODED = [name for name in kinds_of_pipelines.TEXTS if "texts, " in name]
ENCODED += ["threshold of texts", "calibrated texts", "votes of texts"]
KINDS = kinds_of_pipelines.EVERY


def turn_of(name: str, state: str, half: int) -> int:
    return [*KINDS].index(name) + STATES.index(state) + 4 * half


def cases(group: dict[str, Kind], most: int) -> Any:
    """Return the marks of a test of kinds: each state has two parts of the forms."""

    def marked(test: Any) -> Any:
        test = pytest.mark.parametrize("half", [0, 1])(test)
        test = pytest.mark.parametrize("state", STATES)(test)
        return pytest.mark.sampled(most)(pytest.mark.parametrize("name", group)(test))

    return marked


@cases(kinds.MODELS, 70)
def test_ensembles(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@cases(kinds.WRAPPERS, 24)
def test_wrappers(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@cases(kinds_of_pipelines.PIPELINES, 24)
def test_steps_that_fold(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@cases(kinds_of_pipelines.STEPS, 14)
def test_steps_in_their_library(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@cases(kinds_of_pipelines.TEXTS, 9)
def test_texts(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@cases(kinds_of_pipelines.MEMBERS, 6)
def test_members(name, state, half, elsewhere, tmp_path):
    compare(name, state, turn_of(name, state, half), elsewhere, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", kinds.MODELS)
def test_every_cell_of_ensembles(name, state, elsewhere, tmp_path):
    compare(name, state, None, elsewhere, tmp_path)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].stored])
def test_files_are_converted(name, monkeypatch):
    """A file of this format is written again as it is, once its kernels agree."""
    monkeypatch.setenv("SKFORGE_CHECK", "off")
    fast = plain(KINDS[name].fitted()).fit(kinds.ROWS[KINDS[name].on])
    old, new = io.BytesIO(), io.BytesIO()
    skforge.save(fast, old)
    skforge.convert(old.getvalue(), new)
    assert new.getvalue() == old.getvalue()
