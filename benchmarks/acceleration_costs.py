"""What ``accelerate()`` adds to calls that kernels do not answer, in microseconds.

    python -m benchmarks.acceleration_costs --output benchmarks/results

A method that does nothing stands for the library's, plain and wrapped in turns, so that
only what skforge adds is measured. Each figure is the lowest decile of many short
rounds, which other processes disturb least.

First calls are measured with the libraries themselves, of a model that skforge has not
met: its record is forgotten before each call. Plain and wrapped calls take turns.

Calls while a model compiles are those of processes of their own: one asks a model for a
row, again and again, before it is accelerated, until kernels answer, and afterwards.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from timeit import timeit
from typing import Any

import numpy as np
import pandas as pd
import typer
from catboost import CatBoostClassifier
from harness import Document, paragraphs, publish, table
from lightgbm import LGBMClassifier
from machine import in_words, machine
from sklearn.ensemble import RandomForestClassifier
from xgboost import XGBClassifier

from skforge import Schedule
from skforge.acceleration import api, calls
from skforge.acceleration.around_importlib_bootstrap import answering
from skforge.acceleration.records import forget_all, record_of
from skforge.acceleration.settings import ACTIVE, Settings

NEVER = Settings(min_calls=1 << 60)
EAGER = Settings(1, 1, least_seconds=0.0, eager=True, schedule=Schedule())


def nothing(self: Any, X: Any) -> None:
    """Stand for a library's method."""


def seconds(wrapped: Any, model: Any, X: Any, rounds: int) -> float:
    """Return what a wrapped call takes longer than the plain one."""
    sides: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, method in zip(sides, (nothing, wrapped), strict=True):
            side.append(timeit(partial(method, model, X), number=100) / 100)
    plain, ours = (quantiles(side, n=10)[0] for side in sides)
    return ours - plain


def measured(X: Any, rounds: int) -> Document:
    """Return the microseconds of each state of a model, for rows of one form."""
    wrapped = answering(nothing, "predict")
    y = np.arange(len(X)) % 2
    line: Document = {}

    def keep(name: str) -> None:
        line[name] = round(seconds(wrapped, model, X, rounds) * 1e6, 2)

    for state in ("watched", "compiling", "left", "ready"):
        model = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, y)
        ACTIVE.settings = EAGER if state == "ready" else NEVER
        wrapped(model, X)
        record: Any = record_of(model)
        ACTIVE.settings = Settings(min_rows=5000) if state == "ready" else NEVER
        if state != "ready":
            record.state = state
            keep(state)
            continue
        keep("fewer rows than min_rows")
        ACTIVE.settings, record.kernels.overhead = Settings(), 1.0
        keep("the library is faster")
        ACTIVE.settings = None
        keep("switched off again")
    forget_all()
    return line


# ------------------------------------------------------------ first calls


def models(trees: int) -> dict[str, Any]:
    return {
        "scikit-learn": RandomForestClassifier(trees, random_state=0),
        "XGBoost": XGBClassifier(n_estimators=trees, n_jobs=1),
        "LightGBM": LGBMClassifier(n_estimators=trees, n_jobs=1, verbose=-1),
        "CatBoost": CatBoostClassifier(
            iterations=trees, thread_count=1, verbose=0, allow_writing_files=False
        ),
    }


def first_calls(X: Any, frame: Any, rounds: int) -> Iterator[Document]:
    """Yield seconds of calls of models that were not met before, and what we add."""
    y = X[:, 0] + X[:, 1] * X[:, 2] > 0
    api.start((), NEVER)
    sizes = {"small": 5, "big": 300}
    forms: dict[str, Any] = {"array": X, "frame": frame}
    for size, form in product(sizes, forms):
        for library, model in models(sizes[size]).items():
            model.fit(forms[form], y)
            for method, n_rows in product(("predict", "predict_proba"), (1, 1000)):
                rows = forms[form][:n_rows]
                plain, added = _first_call(model, method, rows, rounds)
                about = {"library": library, "trees": sizes[size], "form": form}
                yield {
                    **about,
                    **{"method": method, "rows": n_rows},
                    **{"plain": round(plain * 1e6, 1), "added": round(added * 1e6, 2)},
                }
    api.restore()


def _first_call(model: Any, method: str, rows: Any, rounds: int) -> tuple[float, float]:
    wrapped = getattr(type(model), method)
    own = inspect.unwrap(wrapped)
    sides: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, call in zip(sides, (own, wrapped), strict=True):
            forget_all()
            ACTIVE.thread.inside = True  # or predict asks predict_proba
            own(model, rows)  # so that what was forgotten is in no cache, on both sides
            ACTIVE.thread.inside = call is own
            start = perf_counter()
            call(model, rows)
            side.append(perf_counter() - start)
            ACTIVE.thread.inside = False
    plain, ours = (quantiles(side, n=10)[0] for side in sides)
    return plain, ours - plain


def first_table(lines: list[Document]) -> list[str]:
    rows = [
        [
            *(line["library"], line["trees"], line["method"], line["rows"]),
            *(line["form"], f"{line['plain']:,.0f} µs", f"{line['added']:+.1f} µs"),
            f"{100 * line['added'] / line['plain']:+.1f} %",
        ]
        for line in lines
    ]
    heads = ["library", "trees", "method", "rows", "form", "call", "added", ""]
    return table(heads, rows, kinds="tntntnnn")


# ------------------------------------------------------------ while a model compiles


def waits() -> None:
    """Print the seconds of calls before, while and after a model compiles."""
    X = np.random.default_rng(0).normal(size=(2000, 20))
    model = RandomForestClassifier(100, random_state=0).fit(
        X, X[:, 0] > X[:, 1] * X[:, 2]
    )
    seconds: dict[str, list[float]] = {"before": [], "while": [], "after": []}

    def call(i: int) -> float:
        start = perf_counter()
        model.predict_proba(X[i % 2000 : i % 2000 + 1])
        return perf_counter() - start

    seconds["before"] = [call(i) for i in range(320)][20:]
    api.start((), Settings())
    while (known := record_of(model)) is None or known.state != "ready":
        is_at_work = bool(api.COMPILER.at_work)
        took = call(len(seconds["while"]))
        if is_at_work or api.COMPILER.at_work:
            seconds["while"].append(took)
    call(0), call(0)  # compared
    seconds["after"] = [call(i) for i in range(300)]
    print(json.dumps(seconds))


def waited(processes: int) -> dict[str, list[float]]:
    """Return the 50th and the 99th percentile and the longest call, in milliseconds."""
    code = "from benchmarks.acceleration_costs import waits; waits()"
    every: list[dict[str, list[float]]] = []
    for _ in range(processes):
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True
        )
        every.append(json.loads(told.stdout.splitlines()[-1]))
    found = {}
    for when in every[0]:
        calls_then = np.concatenate([one[when] for one in every])
        parts = (*np.percentile(calls_then, [50, 99]), calls_then.max())
        found[when] = [round(float(part) * 1e3, 2) for part in parts]
    return found


def waits_parts(document: Document) -> Iterator[Any]:
    """Yield the text and the table, if calls were timed while a model compiled."""
    if "waits" not in document:
        return
    yield (
        "Calls of one row of a scikit-learn forest of 100 trees, one after the other, "
        "before it is compiled, meanwhile and after; "
        f"of {document['processes']} processes."
    )
    rows = [
        [when, *(f"{part:.2f} ms" for part in parts)]
        for when, parts in document["waits"].items()
    ]
    yield table(["calls", "median", "99th percentile", "longest"], rows, kinds="tnnn")


def page(document: Document) -> str:
    columns = document["lines"]
    rows = [
        [state, *(f"{column[state]:.2f} µs" for column in columns.values())]
        for state in next(iter(columns.values()))
    ]
    return paragraphs(
        "# What a call that is not taken costs",
        "Microseconds that `skforge.accelerate()` adds to a call that the library "
        f"answers; the lowest decile of {document['rounds']} rounds of 100 calls.",
        table(["state of the model", *columns], rows, kinds="t" + "n" * len(columns)),
        "First calls of models that skforge has not met, of the libraries themselves: "
        f"the lowest decile of {document['first_rounds']} calls a side, in turns. "
        "Where calls vary by more than what is added, its sign means nothing.",
        first_table(document["first_calls"]),
        *waits_parts(document),
        in_words(document["machine"]),
    )


def main(
    rounds: int = 300,
    first_rounds: int = 60,
    processes: int = 10,
    output: Path | None = None,
) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 20))
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(20)])
    calls.OWN[RandomForestClassifier, "predict"] = nothing
    lines = {
        "array": measured(X, rounds),
        "frame": measured(frame, rounds),
    }
    calls.OWN.clear()
    document: Document = {
        **{"rounds": rounds, "first_rounds": first_rounds, "machine": machine()},
        **{"lines": lines, "first_calls": [*first_calls(X, frame, first_rounds)]},
        **{"processes": processes, "waits": waited(processes)},
    }
    print(publish(output, "acceleration_costs", document, page))


if __name__ == "__main__":
    typer.run(main)
