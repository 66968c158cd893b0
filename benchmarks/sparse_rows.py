"""Time wide sparse rows: the source's predictor beside skforge's, and `fit`.

    python -m benchmarks.sparse_rows --output benchmarks/results

Rows have 30,000 columns: with a uniform density of .003, or like texts, whose words are
as frequent as Zipf says. Answers are compared first. All run on one thread, and a time
is the thread's, so that other processes do not count. Calls take other rows in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import harness
import numpy as np
import typer
from lightgbm import LGBMClassifier
from machine import in_words, machine
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from xgboost import XGBClassifier

from skforge import CompiledForest

WIDTH, TRAINED, POOL = 30_000, 6000, 4
#: Words of a text, and the share of columns that a uniform row has.
WORDS, DENSITY = 150, 0.003
FORMS = ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array")


@dataclass(frozen=True, slots=True)
class Cell:
    """One model, form and number of rows; seconds of a call, medians."""

    rows_like: str
    model: str
    form: str
    rows: int
    fit: float
    source: float
    ours: float
    ratio: float


def uniform(n: int, seed: int) -> Any:
    """Return rows whose entries are anywhere."""
    random = np.random.default_rng(seed)
    return sparse.random(n, WIDTH, DENSITY, "csr", random_state=random)


def texts(n: int, seed: int) -> Any:
    """Return weights of words, each the rarer the higher its number."""
    random = np.random.default_rng(seed)
    chance = 1 / np.arange(1, WIDTH + 1)
    words = random.choice(WIDTH, n * WORDS, p=chance / chance.sum())
    starts = np.arange(0, n * WORDS + 1, WORDS)
    X = sparse.csr_matrix((np.ones(n * WORDS), words, starts), (n, WIDTH))
    X.sum_duplicates()
    X.data = np.log1p(X.data) * random.uniform(0.1, 0.4, len(X.data))
    return X


ROWS = {"uniform": uniform, "texts": texts}


def _estimators(n_trees: int) -> dict[str, Callable[[], Any]]:
    options: dict[str, Any] = {"n_estimators": n_trees, "n_jobs": 1}
    forest = partial(RandomForestClassifier, random_state=0, **options)
    return {
        "RandomForestClassifier": forest,
        "RandomForestClassifier, depth 8": partial(forest, max_depth=8),
        "LGBMClassifier": partial(LGBMClassifier, verbose=-1, **options),
        "XGBClassifier": partial(XGBClassifier, **options),
    }


def cells(
    names: list[str], sizes: list[int], n_trees: int, slot: float, rounds: int
) -> Iterator[Cell]:
    """Measure cell by cell; an answer of ours that differs ends the run."""
    clock = time.thread_time
    for like, made in ROWS.items():
        X = made(TRAINED, 0)
        weights = np.random.default_rng(1).normal(size=WIDTH)
        score = X @ (weights * (np.arange(WIDTH) % 20 == 0))
        for name, make in _estimators(n_trees).items():
            if not harness.chosen(name, names):
                continue
            model = make().fit(X, score > np.median(score))
            fast = CompiledForest(model, tuning="off", n_jobs=1)
            fit = harness.seconds(fast.fit, X, clock)
            for form in FORMS:
                for n in sizes:
                    kind = getattr(sparse, form)
                    pool = [kind(made(n, 1 + seed)) for seed in range(POOL)]
                    ours, theirs = fast.predict_proba, model.predict_proba
                    for rows in pool:
                        np.testing.assert_array_equal(ours(rows), theirs(rows))
                    calls = {"ours": ours, "source": theirs}
                    pools = dict.fromkeys(calls, pool)
                    taken = harness.medians(calls, pools, slot, rounds, clock=clock)
                    source, ratio = taken["source"]
                    times = source, taken["ours"][0], ratio or 0.0
                    yield Cell(like, name, form, n, fit, *times)


def page(document: harness.Document) -> str:
    found = harness.records(Cell, document["cells"])
    sizes = sorted({cell.rows for cell in found})
    by_place = {(c.rows_like, c.model, c.form, c.rows): c for c in found}
    words = (
        f"Rows of {WIDTH:,} columns; *uniform* ones have {WIDTH * DENSITY:.0f} "
        f"entries, *texts* {WORDS} words. A cell is the library's time of "
        "`predict_proba` divided by skforge's; in brackets are the µs of skforge's "
        "call. Both run on one thread, whose time is counted, and calls take other "
        "rows in turn."
    )
    rows = []
    for like, model, form in dict.fromkeys(place[:3] for place in by_place):
        of = [by_place[like, model, form, n] for n in sizes]
        ratios = [f"{c.ratio:.1f} ({harness.micro(c.ours)})" for c in of]
        rows.append([like, model, form, *ratios, f"{of[0].fit:.2f}"])
    heads = ["rows", "model", "form", *map(harness.rows_a_call, sizes), "fit, s"]
    table = harness.table(heads, rows, texts=3)
    facts = in_words(document["facts"])
    return harness.paragraphs("# Wide sparse rows", words, facts, table)


def main(
    models: harness.Parts = "",
    batches: harness.Batches = "1,64,2048",
    trees: int = 100,
    slot: harness.Slot = 0.02,
    rounds: harness.Rounds = 5,
    output: harness.Output = None,
) -> None:
    """Measure, print each cell, and write sparse_rows.json and sparse_rows.md."""
    facts, sizes = machine(), harness.numbers(batches)
    found = harness.printed(
        cells(harness.parts(models), sizes, trees, slot, rounds),
        lambda c: (
            f"{c.rows_like:8}{c.model:32}{c.form:11}{c.rows:6} "
            f"{c.ratio:6.1f} ({harness.micro(c.ours)} µs)"
        ),
    )
    harness.publish(output, "sparse_rows", {"facts": facts, "cells": found}, page)


if __name__ == "__main__":
    typer.run(main)
