"""Time the forms in which users have rows: the source's predictor beside skforge's.

    python -m benchmarks.forms --output benchmarks/results

Every model is trained on an array and on a frame, and called with every form by one row
and by many, as it is and loaded from an artifact. A cell is the source's time over
ours, the median of interleaved rounds. Answers are compared first, with their dtypes,
warnings and errors; a cell that differs ends the run. Each call gets another object
than the one before, as requests to a service do; how it is made is not timed.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import harness
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import typer
from lightgbm import LGBMClassifier, LGBMRegressor
from machine import in_words, machine
from plot import canvas, heat, save, tilt
from scipy.sparse import csr_matrix
from sklearn import compose, ensemble, pipeline, preprocessing
from xgboost import XGBClassifier, XGBRegressor

import skforge
from skforge import CompiledForest

N_FEATURES, N_ROWS, N_CATEGORIES = 12, 4096, 8
NAMES = [f"column_{i}" for i in range(N_FEATURES)]
#: Columns of whole numbers in frames of mixed types, and of categories.
WHOLE, CATEGORICAL = (2, 5, 8), (3, 7)
#: Objects that calls take in turn.
POOL = 8
#: Ratios that a user expects, and below which a cell is a cliff.
ARRAYS = ("float32", "float64", "int64", "bool", "float16", "F-order", "strided")
LEAST_ARRAY, LEAST = 10.0, 3.0
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One form of one model; seconds of a call, medians."""

    model: str
    trained: str
    form: str
    rows: int
    source: float | None = None
    ours: float | None = None
    ratio: float | None = None
    error: str = ""  # both raise this


def _estimators(n_trees: int) -> dict[str, Callable[[], Any]]:
    trees: dict[str, Any] = {"n_estimators": n_trees, "random_state": 0}
    one_job = {**trees, "n_jobs": 1}
    light, deep = {**one_job, "verbose": -1}, {**one_job, "max_depth": 8}
    boosted = {**one_job, "max_depth": 6}
    histograms = {"max_iter": n_trees, "random_state": 0}

    def scaled(kind: Any, options: dict[str, Any]) -> Any:
        return pipeline.make_pipeline(preprocessing.StandardScaler(), kind(**options))

    kinds: list[tuple[Any, dict[str, Any]]] = [
        (ensemble.RandomForestClassifier, deep),
        (ensemble.ExtraTreesRegressor, deep),
        (ensemble.GradientBoostingClassifier, {**trees, "max_depth": 5}),
        (ensemble.HistGradientBoostingClassifier, histograms),
        (ensemble.AdaBoostClassifier, trees),
        (ensemble.IsolationForest, one_job),
        (XGBClassifier, boosted),
        (XGBRegressor, boosted),
        (LGBMClassifier, light),
        (LGBMRegressor, light),
    ]
    scalers = (ensemble.RandomForestClassifier, deep), (XGBClassifier, boosted)
    return {
        **{kind.__name__: partial(kind, **options) for kind, options in kinds},
        **{f"scaler, {kind.__name__}": partial(scaled, kind, o) for kind, o in scalers},
    }


def _of_texts(model: Any) -> Any:
    """Return a pipeline's scaler on the numbers, beside an encoder of the texts."""
    scaler, last = (step for _, step in model.steps)
    texts = [NAMES[i] for i in CATEGORICAL]
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore")
    columns = compose.make_column_transformer(
        (scaler, [name for name in NAMES if name not in texts]), (encoder, texts)
    )
    return pipeline.make_pipeline(columns, last)


def _table(seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(N_ROWS, N_FEATURES)) * 3
    X[:, WHOLE] = np.round(X[:, WHOLE] * 4)
    X[:, CATEGORICAL] = random.integers(0, N_CATEGORIES, (N_ROWS, len(CATEGORICAL)))
    y = (X[:, 0] + X[:, 3] * X[:, 5] / 4 + random.normal(size=N_ROWS) > 0).astype(int)
    return X, y


def _frame(X: Any) -> Any:
    return pd.DataFrame(X, columns=NAMES)


def _mixed(X: Any) -> Any:
    whole = [NAMES[i] for i in WHOLE]
    return _frame(X).astype(dict.fromkeys(whole, "int64"))


def _categories(X: Any) -> Any:
    frame = _mixed(X)
    for i in CATEGORICAL:
        kind = pd.CategoricalDtype([f"level {n}" for n in range(N_CATEGORIES)])
        codes = X[:, i].astype(int)
        frame[NAMES[i]] = pd.Categorical.from_codes(codes, dtype=kind)
    return frame


def _texts(X: Any) -> Any:
    return _categories(X).astype({NAMES[i]: str for i in CATEGORICAL})


def _narrow_texts(X: Any) -> Any:
    first, *others = (NAMES[i] for i in range(N_FEATURES) if i not in CATEGORICAL)
    frame = _texts(X).astype(dict.fromkeys(others, np.float32))
    return frame.assign(**{first: frame[first] > 0})


def _arrow(frame: Any) -> Any:
    return pa.Table.from_pandas(frame, preserve_index=False)


FORMS: dict[str, Callable[[Any], Any]] = {
    "float32": lambda X: X.astype(np.float32),
    "float64": lambda X: X,
    "int64": lambda X: X.astype(np.int64),
    "bool": lambda X: X > 0,
    "float16": lambda X: X.astype(np.float16),
    "F-order": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "list": lambda X: X.tolist(),
    "CSR": csr_matrix,
    "pandas": _frame,
    "pandas, float32": lambda X: _frame(X).astype(np.float32),
    "pandas, mixed": _mixed,
    "pandas, nullable": lambda X: _mixed(X).convert_dtypes(),
    "pandas, objects": lambda X: _mixed(X).astype(object),
    "pandas, categories": _categories,
    "polars": lambda X: pl.from_pandas(_frame(X)),
    "pyarrow": lambda X: _arrow(_frame(X)),
    "pandas, texts": _texts,
    "texts, float32, bool": _narrow_texts,
    "texts, nullable": lambda X: _texts(X).convert_dtypes(),
    "texts, Arrow": lambda X: _texts(X).convert_dtypes(dtype_backend="pyarrow"),
    "texts, objects": lambda X: _texts(X).astype(object),
    "polars, texts": lambda X: pl.from_pandas(_texts(X)),
    "pyarrow, texts": lambda X: _arrow(_texts(X)),
}
#: Forms of which some columns are no numbers.
WITH_TEXTS = tuple(form for form in FORMS if "texts" in form)
NUMERIC = tuple(f for f in FORMS if f not in (*WITH_TEXTS, "pandas, categories"))
#: What a model is trained on: the form, and the forms it may be called with.
TRAINED = {
    "array": NUMERIC,
    "frame": NUMERIC,
    "categories": ("pandas, categories",),
    "texts": WITH_TEXTS,
}


def _fitted(name: str, make: Callable[[], Any], trained: str) -> Any:
    """Return a fitted model, or None if it takes no such rows."""
    X, y = _table(0)
    model = make()
    form = {"array": "float64", "frame": "pandas"}.get(trained, f"pandas, {trained}")
    if trained == "texts":
        if not name.startswith("scaler, "):
            return None
        model = _of_texts(model)
    elif trained == "categories":
        if name.startswith("XGB"):
            model.set_params(enable_categorical=True)
        elif name.startswith("Hist"):
            model.set_params(categorical_features="from_dtype")
        elif not name.startswith("LGBM"):
            return None
    return model.fit(FORMS[form](X), y)


def _called(predict: Callable[[Any], Any], rows: Any) -> tuple[Any, str, list[str]]:
    """Return the answer, the error and the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer, error = predict(rows), ""
        except Exception as raised:  # noqa: BLE001 - the other must raise the same
            answer, error = None, f"{type(raised).__name__}: {raised}"
    return answer, error, [f"{w.category.__name__}: {w.message}" for w in caught]


def differences(
    ours: Callable[[Any], Any], theirs: Callable[[Any], Any], X: Any
) -> str:
    """Return in a word how two calls differ: in the error, the warnings or a bit."""
    answer, error, warned = _called(ours, X)
    expected, their_error, they_warned = _called(theirs, X)
    if error.partition("Stack trace")[0] != their_error.partition("Stack trace")[0]:
        return f"error {error[:200]!r}, not {their_error[:200]!r}"
    if warned != they_warned:
        return f"warnings {warned}, not {they_warned}"
    if expected is None:
        return ""
    same = answer.dtype == expected.dtype and np.array_equal(answer, expected)
    return "" if same else "answers"


def cells(
    names: list[str], forms: list[str], sizes: list[int], n_trees: int, slot: float
) -> Iterator[Cell]:
    """Measure cell by cell; an answer of ours that differs ends the run."""
    X, _ = _table(1)
    for name, make in _estimators(n_trees).items():
        if not harness.chosen(name, names):
            continue
        for trained, allowed in TRAINED.items():
            model = _fitted(name, make, trained)
            if model is None:
                continue
            first = {"array": "float64", "frame": "pandas"}.get(trained, allowed[0])
            sample = FORMS[first](X)
            fast = CompiledForest(model, n_jobs=1, tuning="off").fit(sample)
            wanted = [form for form in allowed if not forms or form in forms]
            yield from _cells_of(
                model, fast, Cell(name, trained, "", 0), wanted, sizes, slot
            )
            loaded = _loaded(fast)
            if loaded is not None:
                cell = Cell(name, f"{trained}, loaded", "", 0)
                yield from _cells_of(model, loaded, cell, wanted, sizes, slot)


def _loaded(fast: CompiledForest) -> CompiledForest | None:
    """Return the model after a round through a file, or None if it has no artifact."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.skforge"
        try:
            skforge.save(fast, file)
        except skforge.UnsupportedModelError:
            return None
        return skforge.load(file)


def _cells_of(
    model: Any,
    fast: CompiledForest,
    cell: Cell,
    forms: list[str],
    sizes: list[int],
    slot: float,
) -> Iterator[Cell]:
    X, _ = _table(1)
    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    ours, theirs = getattr(fast, method), getattr(model, method)
    for form in forms:
        for n in sizes:
            pool = [FORMS[form](X[i : i + n]) for i in range(POOL)]
            where = replace(cell, form=form, rows=n)
            _, error, _ = _called(theirs, pool[0])
            if error:
                if not _called(ours, pool[0])[1]:
                    raise SystemExit(f"{where}: the source raises {error}")
                yield replace(where, error=error[:120])
                continue
            if _called(ours, pool[0])[1].startswith("SourceNeededError"):
                yield replace(where, error="needs the model")
                continue
            if found := differences(ours, theirs, pool[0]):
                raise SystemExit(f"{where}: {found}")
            calls = {"ours": ours, "source": theirs}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pools = dict.fromkeys(calls, pool)
                taken = harness.medians(calls, pools, slot, ROUNDS)
            source, ratio = taken["source"]
            yield replace(where, source=source, ours=taken["ours"][0], ratio=ratio)


def _expected(cell: Cell) -> float:
    return LEAST_ARRAY if cell.form in ARRAYS else LEAST


def page(document: harness.Document) -> str:
    found = harness.records(Cell, document["cells"])
    timed = [cell for cell in found if cell.ratio is not None]
    cliffs = [cell for cell in timed if cell.ratio < _expected(cell)]  # type: ignore[operator]
    words = (
        "A cell is the time of the model's own library divided by skforge's time; in "
        "brackets are the µs of skforge's call. Cells below "
        f"{LEAST_ARRAY:.0f} (arrays) or {LEAST:.0f} (other forms) are bold: there are "
        f"{len(cliffs)} of them among {len(timed)}. – is a form that both refuse with "
        "the same error, or for which a *loaded* model, one from a .skforge file, asks "
        "for the model itself."
    )
    parts: list[Any] = ["# Forms of rows", words, in_words(document["facts"])]
    forms = [f for f in FORMS if any(c.form == f for c in found)]
    kinds = list(dict.fromkeys((c.model, c.trained) for c in found))
    for n in sorted({cell.rows for cell in found}):
        texts = {(c.model, c.trained, c.form): _text(c) for c in found if c.rows == n}
        rows = [
            [", ".join(kind), *(texts.get((*kind, form), "") for form in forms)]
            for kind in kinds
        ]
        parts += [f"## {harness.rows_a_call(n)}: ratio, and µs a call of skforge"]
        parts += [harness.table(["model, trained on", *forms], rows)]
    return harness.paragraphs(*parts) + "\n"


def _text(cell: Cell) -> str:
    if cell.ratio is None or cell.ours is None:
        return "–"
    ratio = f"{cell.ratio:.1f}" if cell.ratio < 10 else f"{cell.ratio:.0f}"
    ratio = f"**{ratio}**" if cell.ratio < _expected(cell) else ratio
    return f"{ratio} ({cell.ours * 1e6:,.{1 if cell.ours < 1e-5 else 0}f})"


def plot(found: list[Cell], file: Path) -> None:
    from matplotlib.colors import LogNorm

    live = [cell for cell in found if not cell.trained.endswith("loaded")]
    sizes = sorted({cell.rows for cell in live})
    names = list(dict.fromkeys((cell.model, cell.trained) for cell in live))
    forms = [form for form in FORMS if any(cell.form == form for cell in live)]
    size = (10, 1.6 + 0.27 * len(names) * len(sizes))
    figure, panels = canvas(size, len(sizes), 1, sharex=True, squeeze=False)
    for panel, n in zip(panels.flat, sizes, strict=True):
        ratios = np.full((len(names), len(forms)), np.nan)
        for cell in live:
            if cell.rows == n and cell.ratio is not None:
                place = names.index((cell.model, cell.trained)), forms.index(cell.form)
                ratios[place] = cell.ratio
        image = heat(
            panel,
            ratios,
            forms,
            [", ".join(name) for name in names],
            lambda x: "" if np.isnan(x) else f"{x:.0f}" if x >= 9.5 else f"{x:.1f}",
            lambda x: "black" if x > 60 else "white",
            norm=LogNorm(1, 1000),
            cmap="viridis",
        )
        panel.set_title(f"{harness.rows_a_call(n)} a call", fontsize=9, loc="left")
        tilt(panel, forms, 35, 8)
    figure.colorbar(image, ax=panels, label="time of the library / time of skforge")
    save(figure, file, dpi=110)


def main(
    models: harness.Parts = "",
    forms: Annotated[str, typer.Option(help="Forms, by semicolons.")] = "",
    batches: harness.Batches = "1,512",
    trees: Annotated[int, typer.Option(help="Trees a model.")] = 100,
    slot: harness.Slot = 0.01,
    output: harness.Output = None,
) -> None:
    """Measure, print each cell as it is found, and write forms.json and forms.md."""
    facts = machine()
    shapes = [part for part in forms.split(";") if part]
    found = harness.printed(
        cells(harness.parts(models), shapes, harness.numbers(batches), trees, slot),
        lambda c: f"{c.model:32}{c.trained:20}{c.form:20}{c.rows:6}  {_text(c)}",
    )
    harness.publish(output, "forms", {"facts": facts, "cells": found}, page)
    if output is not None:
        plot(found, output / "forms.png")


if __name__ == "__main__":
    typer.run(main)
