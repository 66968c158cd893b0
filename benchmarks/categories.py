"""Time CatBoost's models beside CatBoost and lignum, with categories and without.

    pip install pylignum                                  # and what the bench extra has
    python -m benchmarks.categories --output benchmarks/results

Categories lie in arrays of objects, as the libraries take them from a request; one row
also comes as a mapping. Answers are compared first. All run on one thread, and each
call takes new rows, because the same ones are learnt by heart by branches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import catboost
import harness
import numpy as np
import pandas as pd
import typer
from machine import in_words, machine

from skforge import CompiledForest

TRAINED, POOL_ROWS, MOST_POOL = 12_000, 40_000, 2_000
#: Different values of the columns of the Adult data set, and of a made one.
ADULT, WIDE = (9, 16, 7, 15, 6, 5, 2, 42), (2, 4, 9, 40, 200, 900)
SYMMETRIC = "SymmetricTree"


@dataclass(frozen=True, slots=True)
class Cell:
    """One model and number of rows; seconds of a call, medians; 0 if not measured."""

    model: str
    rows: int
    fit: float
    ours: float
    mapping: float
    catboost: float
    lignum: float
    by_catboost: float  # ratios
    by_lignum: float


def rows_of(counts: tuple[int, ...], n_numbers: int, n: int, seed: int) -> Any:
    """Return a frame of texts, of which low ones are frequent, and of numbers."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for i, count in enumerate(counts):
        texts = np.array([f"value {k} of {i}" for k in range(count)], object)
        drawn = np.minimum(random.geometric(min(0.5, 3 / count), n), count) - 1
        columns[f"text {i}"] = texts[drawn]
    for i in range(n_numbers):
        columns[f"number {i}"] = random.normal(size=n)
    return pd.DataFrame(columns)


def _target(frame: Any, classes: int) -> Any:
    random = np.random.default_rng(1)
    score = random.normal(size=len(frame))
    for name in frame:
        values = frame[name]
        if name.startswith("text"):
            values = values.map(lambda text: hash_of(text) % 5 * 0.4)
        score = score + values.to_numpy(float)
    if classes == 0:
        return score
    return np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def hash_of(text: str) -> int:
    """Return a number of a text that is the same in every process."""
    return sum(text.encode())


#: Values of the columns with texts, columns of numbers, shape of trees, and classes.
MODELS = {
    "numbers": ((), 28, SYMMETRIC, 0),
    "Adult-like": (ADULT, 6, SYMMETRIC, 2),
    "many values": (WIDE, 3, SYMMETRIC, 2),
    "Adult-like, lossguide": (ADULT, 6, "Lossguide", 2),
    "Adult-like, depthwise": (ADULT, 6, "Depthwise", 2),
    "Adult-like, 4 classes": (ADULT, 6, SYMMETRIC, 4),
}


def _trained(name: str, n_trees: int) -> tuple[Any, Any]:
    counts, n_numbers, policy, classes = MODELS[name]
    frame = rows_of(counts, n_numbers, TRAINED, 0)
    kind = catboost.CatBoostClassifier if classes else catboost.CatBoostRegressor
    model = kind(
        iterations=n_trees,
        depth=6,
        grow_policy=policy,
        cat_features=[*range(len(counts))],
        one_hot_max_size=4,
        allow_writing_files=False,
        verbose=0,
        random_seed=0,
    )
    return model.fit(frame, _target(frame, classes)), frame


def _lignum(model: Any) -> Any:
    """Return lignum's reader of a model; None for trees that it refuses."""
    import lignum

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        model.save_model(path)
        try:
            return lignum.load(str(path))
        except Exception:  # noqa: BLE001 - it has errors of its own
            return None


def cells(
    names: list[str], sizes: list[int], n_trees: int, slot: float, rounds: int
) -> Iterator[Cell]:
    """Measure cell by cell; an answer of ours that differs ends the run."""
    for name, (counts, n_numbers, *_) in MODELS.items():
        if not harness.chosen(name, names):
            continue
        model, frame = _trained(name, n_trees)
        fast = CompiledForest(model, tuning="off", n_jobs=1)
        fit = harness.seconds(fast.fit, frame)
        peer = _lignum(model)
        given = rows_of(counts, n_numbers, POOL_ROWS, 7)
        whole = np.ascontiguousarray(given, object if counts else np.float32)
        raw = {"prediction_type": "RawFormulaVal"}
        theirs = partial(model.predict, thread_count=1, **raw)
        expected = theirs(whole)
        np.testing.assert_array_equal(fast.predict_raw(whole), expected)
        if peer is not None:
            answer = np.asarray(peer.predict(whole, raw_score=True, n_jobs=1)).reshape(
                expected.shape
            )
            np.testing.assert_array_equal(answer, expected)
        for n in sizes:
            starts = range(0, POOL_ROWS - n + 1, n)[:MOST_POOL] or [0]
            pool = [np.resize(whole, (n, whole.shape[1]))] if n > POOL_ROWS else []
            pool = pool or [whole[i : i + n] for i in starts]
            calls = {"ours": fast.predict_raw, "catboost": theirs}
            if peer is not None:
                calls["lignum"] = partial(peer.predict, raw_score=True, n_jobs=1)
            pools: dict[str, Any] = dict.fromkeys(calls, pool)
            if n == 1:
                calls["mapping"] = fast.predict_raw
                pools["mapping"] = given[:MOST_POOL].to_dict("records")
            taken = harness.medians(calls, pools, slot, rounds)
            systems = ("ours", "mapping", "catboost", "lignum")
            found = (taken.get(s, (0.0, 0.0)) for s in systems)
            middles, ratios = zip(*found, strict=True)
            yield Cell(name, n, fit, *middles, *ratios[2:])


def page(document: harness.Document) -> str:
    found = harness.records(Cell, document["cells"])
    sizes = sorted({cell.rows for cell in found})
    by_place = {(cell.model, cell.rows): cell for cell in found}
    words = (
        f"{document['trees']:,} trees of depth 6. A cell has the µs a row of "
        "`predict_raw`, and how often CatBoost's and lignum's time it is (lignum "
        "refuses trees that are not symmetric). *Adult-like* rows have the columns of "
        "the Adult data set, *many values* texts of up to 900 values and three "
        "numbers, and *numbers* 28 columns without texts. Rows are arrays of objects, "
        "or of float32; all run on one thread, and each call takes new rows."
    )
    rows = []
    for model in dict.fromkeys(cell.model for cell in found):
        of = [by_place[model, n] for n in sizes if (model, n) in by_place]
        cells = [
            f"{c.ours / c.rows * 1e6:.3g} ({c.by_catboost:.3g}×"
            + (f", {c.by_lignum:.3g}×)" if c.lignum else ")")
            for c in of
        ]
        one = f"{of[0].mapping * 1e6:.2f}" if of[0].mapping else "–"
        rows.append([model, one, *cells, f"{of[0].fit:.2f}"])
    heads = ["model", "one mapping, µs", *map(harness.rows_a_call, sizes), "fit, s"]
    title, facts = "# CatBoost's models, with categories and without", document["facts"]
    table = harness.table(heads, rows)
    return harness.paragraphs(title, words, in_words(facts), table)


def main(
    models: harness.Parts = "",
    batches: harness.Batches = "1,8,64,512,4096,100000",
    trees: int = 500,
    slot: harness.Slot = 0.05,
    rounds: harness.Rounds = 7,
    output: harness.Output = None,
) -> None:
    """Measure, print each cell, and write categories.json and categories.md."""
    facts, sizes = machine(), harness.numbers(batches)

    def words(cell: Cell) -> str:
        times = (cell.ours, cell.catboost, cell.lignum)
        shown = "".join(f"{time / cell.rows * 1e6:10.3f}" for time in times)
        ratios = f"{cell.by_catboost:7.1f}{cell.by_lignum:7.1f}"
        mapping = f"  mapping {cell.mapping * 1e6:.2f}" if cell.mapping else ""
        return f"{cell.model:24}{cell.rows:7}{shown}{ratios}{mapping}"

    measured = cells(harness.parts(models), sizes, trees, slot, rounds)
    found = harness.printed(measured, words)
    document = {"facts": facts, "trees": trees, "cells": found}
    harness.publish(output, "categories", document, page)


if __name__ == "__main__":
    typer.run(main)
