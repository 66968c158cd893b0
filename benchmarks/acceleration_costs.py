"""What ``accelerate()`` adds to calls that kernels do not answer, in microseconds.

    python -m benchmarks.acceleration_costs --output benchmarks/results

A method that does nothing stands for the library's, plain and wrapped in turns, so that
only what skforge adds is measured. Each figure is the lowest decile of many short
rounds, which other processes disturb least.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import quantiles
from timeit import timeit
from typing import Any

import numpy as np
import pandas as pd
import typer
from harness import Document, paragraphs, publish, table
from machine import in_words, machine
from sklearn.ensemble import RandomForestClassifier

from skforge import Schedule
from skforge.acceleration import calls
from skforge.acceleration.around_importlib_bootstrap import answering
from skforge.acceleration.records import forget_all, record_of
from skforge.acceleration.settings import ACTIVE, Settings

NEVER = Settings(min_calls=1 << 60)
EAGER = Settings(min_calls=1, eager=True, schedule=Schedule())


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
        in_words(document["machine"]),
    )


def main(rounds: int = 300, output: Path | None = None) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 20))
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(20)])
    calls.OWN[RandomForestClassifier, "predict"] = nothing
    lines = {
        "array": measured(X, rounds),
        "frame": measured(frame, rounds),
    }
    document: Document = {"rounds": rounds, "machine": machine(), "lines": lines}
    print(publish(output, "acceleration_costs", document, page))


if __name__ == "__main__":
    typer.run(main)
