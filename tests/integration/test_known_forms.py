"""Rows of a form that was read before take a short way: their answers are the same.

Every form of frames, tables and lists is asked until it is known, and then again after
rows of the most ordinary form of its class, which it may be taken for.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from skforge.prediction.predictor import ForestPredictor
from tests import forms, kinds
from tests.compared_calls import Call, apart, called
from tests.comparing import assert_alike, saved
from tests.kinds_of_pipelines import EVERY
from tests.plain import plain
from tests.reliability.planting import Edit, planted

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.doors]

#: One kind or two of each adapter, reader and rule of names.
KINDS = (
    *("forest of three", "forest of a frame", "gb of odd", "bagging of three names"),
    *("hist of a frame", "hist of categories", "hist, sets", "adaboost of a frame"),
    *("xgboost of three", "xgboost of a frame", "xgboost of categories"),
    *("xgboost, booster", "lightgbm of three", "lightgbm of a frame"),
    *("lightgbm of categories", "lightgbm of categories as numbers"),
    *("calibrated of a frame", "calibrated pipelines", "outputs, xgboost, columns"),
    *("catboost of three", "catboost of a frame"),
    *("standard, forest", "standard, xgboost", "bins-quantile, lightgbm"),
    *("by name, drop, forest", "scaled frame", "standard and texts, forest"),
    *("none and texts, histogram", "votes of texts", "pca before forest", "stack"),
)
#: By the beginning of a form's name, the ordinary rows of its class.
USUAL = {name: f"{name}, float64" for name in ("frame", "polars", "arrow")}
USUAL |= {"list": "list", "tuple": "tuple"}


def rows_of(kind: kinds.Kind, base: Any) -> list[tuple[str, Any, Any]]:
    """Return forms with their rows, and the ordinary rows of the same class."""
    if kind.on == "passengers":
        makers = {"float64": lambda frame: frame, **forms.PASSENGERS}
        usual = dict.fromkeys(makers, "float64")
    else:
        makers = forms.NUMBERS
        starts = {name: name.split(",")[0].split(" ")[0] for name in makers}
        usual = {name: USUAL[at] for name, at in starts.items() if at in USUAL}
    found = []
    for name, first in usual.items():
        try:
            found.append((name, makers[name](base), makers[first](base)))
        except (TypeError, ValueError, OverflowError):
            continue  # no such column can be made of these numbers
    return found


def first_rows(X: Any, n: int) -> Any:
    return X.slice(0, n) if hasattr(X, "schema") and hasattr(X, "slice") else X[:n]


def differing(wanted: Call, found: Call, rows: Any, state: str) -> str:
    if state == "file" and (found[1] or wanted[1]):
        return ""  # its errors have words of their own; test_kinds.py tells which
    if state == "file" and (type(rows).__name__ == "RecordBatch" or not len(rows)):
        return ""  # taken for a table, and for an array without rows
    if "Check failed: n_features" in wanted[1]:
        return "" if found[1] else "no error"
    return apart(found, wanted, rows)


def asked(method: str, model: Any, rows: Any, n: int | None = None) -> Call:
    given = rows if n is None else first_rows(rows, n)
    return called(getattr(model, method), given)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("state", ["live", "file"])
@pytest.mark.parametrize("name", KINDS)
def test_known_forms_have_the_model_s_answers(name, state, half, tmp_path):
    kind = EVERY[name]
    if kind.part is not None or (state == "file" and not kind.stored):
        pytest.skip("no model of its own to compare with")
    model = kind.fitted()
    with pytest.MonkeyPatch.context() as patch:
        if state == "file":  # what a file is made of answers nothing here
            patch.setenv("SKFORGE_CHECK", "off")
        fast: Any = plain(model).fit(kinds.ROWS[kind.on])
    base = kinds.base_rows(kind, fast)
    if state == "file":
        fast = saved(fast, tmp_path)
    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    wrong = []
    for form, rows, usual in rows_of(kind, base)[half::2]:
        if name.startswith("catboost") and form == "polars, text":
            continue  # CatBoost 1.2 ends the process
        sizes = [1, None] if hasattr(rows, "__len__") and len(rows) else [None]
        wanted = {n: asked(method, model, rows, n) for n in sizes}
        found = [(n, asked(method, fast, rows, n)) for n in (*sizes, *sizes, sizes[0])]
        for size in (1, None):
            asked(method, fast, usual, size)
        found += [(n, asked(method, fast, rows, n)) for n in sizes]
        for n, call in found:
            if said := differing(wanted[n], call, rows, state):
                wrong.append(f"{form}, {n} rows: {said}")
    assert not wrong, "\n".join(wrong[:20])


def readers_of(fast: Any, X: Any) -> str | None:
    """Return what reads rows by their form, after three calls."""
    for _ in range(3):
        fast.predict(X)
    predictor: ForestPredictor = fast._predictor
    form = predictor.known_forms["predict", type(X)][0]
    read = getattr(form.read, "func", form.read)
    return None if form.entry is None else read.__qualname__.partition(".")[0]


def test_known_forms_that_are_warned_of_are_warned_of_each_time() -> None:
    kind = kinds.MODELS["forest of three"]
    fast = plain(kind.fitted()).fit(kinds.X)
    frame = forms.framed(kinds.X)
    assert readers_of(fast, frame) == "_one_block"
    for _ in range(2):
        with pytest.warns(UserWarning, match="X has feature names, but Random"):
            fast.predict(frame)


CHANGES: dict[str, Any] = {
    "none": lambda frame: frame.copy(),
    "mixed": lambda frame: frame.astype({"c": "int64", "b": "float32"}),
    "nullable": lambda frame: frame.convert_dtypes(),
    "objects": lambda frame: frame.astype(object),
    "list": lambda frame: frame.to_numpy().tolist(),
}
READ = {
    "xgboost of three": {"none": "_one_block", "list": "of_list", "mixed": "_blocks"},
    "xgboost of categories": {"none": "_blocks"},
    "lightgbm of categories": {"none": "_blocks"},
    "forest of three names": {"objects": "_blocks"},
    "calibrated, sigmoid, forest, two": {"objects": "_blocks"},
    "catboost of a frame": {"objects": "_blocks", "nullable": "_blocks"},
}
READ["xgboost of three"]["nullable"] = "_blocks"


@pytest.mark.parametrize("name", READ)
def test_ordinary_rows_are_not_checked_again(name: str, tmp_path: Path) -> None:
    """Blocks of each kind are planned once."""
    kind = EVERY[name]
    rows = kinds.ROWS[kind.on]
    fast = plain(kind.fitted()).fit(rows)
    frame = forms.framed(rows) if isinstance(rows, np.ndarray) else rows
    for change, reader in READ[name].items():
        assert readers_of(fast, CHANGES[change](frame)) == reader
    if name == "xgboost of three":
        stored = saved(fast, tmp_path)
        for change in ("list", "none"):
            assert readers_of(stored, CHANGES[change](frame)) == READ[name][change]


@pytest.mark.parametrize("calls", [1, 3, 20])
def test_first_values_that_no_reader_takes_decide_nothing(calls: int) -> None:
    """XGBoost's float32 rows cannot hold them, and so nothing reads such frames."""
    fast = plain(kinds.MODELS["xgboost of three"].fitted()).fit(kinds.X)
    frame = forms.framed(kinds.X).astype({"c": "int64"})
    fast.predict(forms.framed(kinds.X))
    with suppress(ValueError):  # XGBoost 3.4 finds no largest of no probabilities
        fast.predict(frame[:0])
    for _ in range(calls):
        fast.predict(frame.assign(a=np.inf))
    for _ in range(2 * calls):
        fast.predict(frame)
    assert readers_of(fast, frame) == "_blocks"


def test_ordinary_rows_of_histogram_boosting_are_not_checked_again(tmp_path) -> None:
    """Not even where the encoder refuses booleans: these are another form."""
    frame = forms.framed(np.round(kinds.X)).assign(a=np.arange(len(kinds.X)) % 2 + 2)
    model = HistGradientBoostingRegressor(max_iter=3, categorical_features=["a"])
    fast = plain(model.fit(frame, kinds.X[:, 1])).fit(frame)
    assert readers_of(fast, forms.framed(frame.to_numpy(float))) == "_one_block"
    assert readers_of(fast, frame) == "_blocks"
    assert readers_of(fast, frame.convert_dtypes()) == "_blocks"
    assert readers_of(fast, pl.DataFrame(frame.to_dict("list"))) == "of_table"
    assert readers_of(fast, frame.astype({"a": "category"})) == "_blocks"
    gaps = pl.DataFrame(frame[:2].assign(a=[True, None]).to_dict("list"))
    assert readers_of(fast, gaps) == "of_source"
    mapped = np.memmap(tmp_path / "rows", float, "w+", shape=frame.shape)
    mapped[:] = frame
    assert readers_of(fast, mapped) == "of_source"


@pytest.mark.parametrize("name", ["xgboost of three", "forest of three"])
@pytest.mark.parametrize("make", ["list", "none", "mixed", "polars", "pyarrow"])
def test_many_rows_are_read_once(name: str, make: str) -> None:
    """What reads them for an entry that declines them is the second to read them."""
    fast = plain(kinds.MODELS[name].fitted()).fit(kinds.X)
    frame = forms.framed(np.tile(kinds.X, (4, 1))[:512])
    rows = {
        **{change: CHANGES[change](frame) for change in ("list", "none", "mixed")},
        "polars": pl.DataFrame(frame.to_numpy(), [*frame.columns]),
        "pyarrow": pa.table(dict(frame.items())),
    }[make]
    for _ in range(3):
        fast.predict(rows)
    form = fast._predictor.known_forms["predict", type(rows)][-1]
    assert form.entry(form.read(rows)) is not None


@pytest.mark.parametrize(
    "edit",
    [
        Edit("rows.known_forms:_one_block", "values.T", "values[::-1].T"),
        Edit("rows.known_forms:_blocks", "return rows", "return -rows"),
    ],
)
def test_what_reads_a_known_form_is_compared_first(edit, monkeypatch):
    """With the other reader's answers: a form that is read otherwise is never known."""
    monkeypatch.setenv("SKFORGE_CHECK", "off")
    model = kinds.MODELS["xgboost of three"].fitted()
    fast = plain(model).fit(kinds.X)
    frame = forms.framed(kinds.X)
    frame = frame if "one_block" in edit.place else frame.astype({"c": "int64"})
    with planted([edit]):
        assert readers_of(fast, frame) is None
        assert np.array_equal(fast.predict(frame), model.predict(frame))


def test_labels_that_are_equal_and_of_another_type_are_another_form() -> None:
    model = kinds.MODELS["xgboost of three"].fitted()
    fast = plain(model).fit(kinds.X)
    frame = pd.DataFrame(kinds.X).rename(columns={1: "x"})
    calls = [frame, frame, frame, frame.rename(columns={0: False})]
    assert_alike(fast, model, *calls, methods=("predict",))


@pytest.mark.parametrize("name", ["xgboost of three", "forest of three names"])
def test_values_decide_on_rows_of_a_known_form(name: str) -> None:
    kind = kinds.MODELS[name]
    model = kind.fitted()
    fast = plain(model).fit(kinds.ROWS[kind.on])
    base = kinds.base_rows(kind, fast)
    wide = base.astype({base.columns[2]: np.int64})
    for frame in (base, wide):
        for _ in range(3):
            fast.predict(frame[:1]), fast.predict(frame)
        for value in (*forms.ODD, 2.0**53, 2.0**53 + 2):
            for n in (1, 5):
                X = frame[:n].copy()
                column = 1 + (value.is_integer() and abs(value) < 2.0**62)
                X.isetitem(column, X.iloc[:, column].where(X.index != 0, value))
                X = X.astype(frame.dtypes.to_dict()) if column == 2 else X
                assert_alike(fast, model, X, methods=("predict",))
        assert_alike(fast, model, frame[:0], methods=("predict",))
