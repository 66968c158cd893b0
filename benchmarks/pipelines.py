"""Whole pipelines: skforge beside scikit-learn, ONNX Runtime and Hummingbird.

    python -m benchmarks.pipelines --output benchmarks/results

Every system gets the whole pipeline, preprocessing included, in one process and on one
thread. Answers are compared with scikit-learn's first; one of skforge's that differs
in a bit ends the run. Times are medians of rounds in which the systems take turns. A
system that cannot do a pipeline or a form of rows says so in its cell.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
import typer
from forms import differences
from machine import in_words, machine
from pipelines_cases import CASES, Case
from pipelines_peers import MAPPING, SYSTEMS, Way, forms_of
from plot import canvas, save

from skforge import UnsupportedModelError, load_forest

OURS, SOURCE = "skforge", "scikit-learn"
#: Rows that calls take in turn, those that answers are compared on, and one by one.
POOL, N_COMPARED, N_SINGLE = 8, 4096, 64
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Cell:
    """One system with one form of rows; seconds of a call."""

    case: str
    form: str
    rows: int
    system: str
    seconds: float | None = None
    #: By the time of skforge in the same round; the median.
    ratio: float | None = None
    #: Greatest difference from scikit-learn, and the share of rows that differ by more
    #: than rounding to float32 does.
    difference: float | None = None
    differ: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Folding:
    """How long it takes to read a pipeline, and the forest of its last step alone."""

    case: str
    seconds: float | None = None
    last_seconds: float | None = None
    #: Distinct tests of transformed values, and of raw ones.
    tests: int | None = None
    folded: int | None = None
    error: str = ""

    @property
    def per_60_000(self) -> float:
        """Seconds that 60,000 tests would take, reading the forest not counted."""
        assert self.seconds is not None and self.tests and self.last_seconds is not None
        return (self.seconds - self.last_seconds) / self.tests * 60_000


# ------------------------------------------------------------ measuring


def folding(name: str, case: Case) -> Folding:
    """Time ``load_forest`` of a pipeline; the median of three."""
    model = case.fitted("array" if case.arrays else "frame")
    try:
        forest = load_forest(model)
        last = load_forest(model[-1])
    except UnsupportedModelError as error:
        return Folding(name, error=f"refused: {error}")
    whole, alone = (
        median(harness.seconds(load_forest, one) for _ in range(3))
        for one in (model, model[-1])
    )
    return Folding(name, whole, alone, last.n_predicates, forest.n_predicates)


def loaded(case: Case) -> tuple[dict[str, dict[str, Way]], dict[str, str]]:
    ways: dict[str, dict[str, Way]] = {}
    errors: dict[str, str] = {}
    for system, load in SYSTEMS.items():
        try:
            ways[system] = load(case)
        except UnsupportedModelError as error:
            errors[system] = f"refused: {harness.short(error)}"
        except Exception as error:  # noqa: BLE001 - converters raise all kinds
            errors[system] = f"cannot: {type(error).__name__}: {harness.short(error)}"
    return ways, errors


def compared(way: Way, source: Way, frame: Any) -> tuple[float, float]:
    """Return the greatest difference of answers, and the share of rows that differ."""
    answer = np.asarray(way.call(way.make(frame)))
    expected = source.call(source.make(frame))
    apart = np.abs(answer - expected).max(axis=1)
    return float(apart.max()), float((apart > 1e-5).mean())


def of_form(
    name: str,
    form: str,
    ways: dict[str, Way],
    draw: Callable[[int, int], tuple[Any, Any]],
    sizes: list[int],
    slot: float,
) -> Iterator[Cell]:
    frame, _ = draw(N_COMPARED, 1)
    singly = form == MAPPING
    parts = [frame[i : i + 1] for i in range(N_SINGLE)] if singly else [frame]
    source, found = ways[SOURCE], {}
    for system, way in ways.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                each = [compared(way, source, part) for part in parts]
        except Exception as error:  # noqa: BLE001 - the form is not taken
            text = f"refused: {type(error).__name__}: {harness.short(error)}"
            yield from (Cell(name, form, n, system, error=text) for n in sizes)
            continue
        found[system] = (
            max(one for one, _ in each),
            float(np.mean([share for _, share in each])),
        )
    if OURS in found:
        for part in parts if singly else [frame, frame[:1], frame[:64]]:
            rows = ways[OURS].make(part)
            if what := differences(ways[OURS].call, source.call, rows):
                raise SystemExit(f"{name}, {form}, {len(part)} rows: {what}")
    for n in [1] if singly else sizes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = {system: ways[system].call for system in found}
            pools = {system: _pool(ways[system], draw, n) for system in found}
            taken = harness.medians(calls, pools, slot, ROUNDS, OURS)
        for system, times in taken.items():
            yield Cell(name, form, n, system, *times, *found[system])


def _pool(way: Way, draw: Callable[[int, int], tuple[Any, Any]], n: int) -> list[Any]:
    frame, _ = draw(n + POOL, 2)
    return [way.make(frame[i : i + n].reset_index(drop=True)) for i in range(POOL)]


def cells(names: list[str], sizes: list[int], slot: float) -> Iterator[Cell]:
    for name, case in CASES.items():
        if not harness.chosen(name, names):
            continue
        ways, errors = loaded(case)
        for form in forms_of(case):
            wanted = [1] if form == MAPPING else sizes
            for system, text in errors.items():
                yield from (Cell(name, form, n, system, error=text) for n in wanted)
            taking = {s: all_[form] for s, all_ in ways.items() if form in all_}
            yield from of_form(name, form, taking, case.draw, wanted, slot)


# ------------------------------------------------------------ reporting


EXPLAINED = """\
Each cell has the µs a call of `predict_proba` and, in bold, that time divided by
skforge's time for the same rows. Every system runs the whole pipeline on one thread.

- Arrays are float64. ONNX Runtime gets float32, converted before the call.
- Frames are pandas frames. ONNX Runtime gets a dict with one array a column, made
  before the call. Missing texts are NaN; ONNX Runtime gets a word that stands for
  missing.
- A mapping is one row, such as `{"age": 41, "sex": "male", ...}`. scikit-learn gets a
  frame and ONNX Runtime arrays of one value; both are made within the call.

skforge's answers are those of scikit-learn, bit by bit. *apart* is the greatest
difference of another system, and the share of rows that differ by more than 1e-5. ONNX
Runtime and Hummingbird compute in float32, so a value near a threshold may go to the
other side."""


def page(document: harness.Document) -> str:
    found, folded = harness.records(Cell, document["cells"]), document["folding"]
    parts: list[Any] = ["# Pipelines", EXPLAINED, in_words(document["facts"])]
    for case in dict.fromkeys(cell.case for cell in found):
        mine = [cell for cell in found if cell.case == case]
        texts = {(c.form, c.rows, c.system): _text(c) for c in mine}
        rows = [
            [f"{form}, {n:,}", *(texts.get((form, n, s), "") for s in SYSTEMS)]
            for form, n in dict.fromkeys((cell.form, cell.rows) for cell in mine)
        ]
        rows.append(["apart", *(_apart(mine, system) for system in SYSTEMS)])
        parts += [f"## {case}", harness.table(["rows", *SYSTEMS], rows)]
        for system in SYSTEMS:
            errors = dict.fromkeys(c.error for c in mine if c.system == system)
            parts += [f"{system} – {text}" for text in errors if text]
    heads = ["pipeline", "load_forest", "of it the forest alone", "tests"]
    heads += ["tests of raw values", "s for 60,000 tests"]
    rows = [[one.case, _folding(one)] for one in harness.records(Folding, folded)]
    return harness.paragraphs(*parts, "## Folding", harness.table(heads, rows))


def _text(cell: Cell) -> str:
    if cell.seconds is None:
        return cell.error.partition(":")[0]
    return harness.beside_ours(
        cell.seconds, None if cell.system == OURS else cell.ratio
    )


def _apart(found: list[Cell], system: str) -> str:
    mine = [c for c in found if c.system == system and c.difference is not None]
    if not mine or system == SOURCE:
        return ""
    worst = max(mine, key=lambda cell: cell.difference or 0.0)
    if not worst.difference:
        return "0"
    return f"{worst.difference:.1e}; {worst.differ:.2%}"


def _folding(one: Folding) -> str:
    if one.seconds is None or one.last_seconds is None:
        return f"{one.error.partition(':')[0]} | | | |"
    return (
        f"{one.seconds:.2f} s | {one.last_seconds:.2f} s | {one.tests:,} | "
        f"{one.folded:,} | {one.per_60_000:.2f}"
    )


def plot(found: list[Cell], file: Path) -> None:
    timed = [c for c in found if c.ratio is not None and c.system != OURS]
    lines = list(dict.fromkeys((c.case, c.form, c.rows) for c in timed))
    figure, axes = canvas((9, 1.4 + 0.24 * len(lines)))
    for system, marker in zip(SYSTEMS, "osD^", strict=False):
        own = [c for c in timed if c.system == system]
        if own:
            y = [lines.index((c.case, c.form, c.rows)) for c in own]
            axes.scatter([c.ratio for c in own], y, label=system, marker=marker, s=28)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    texts = [f"{case}, {form}, {harness.rows_a_call(n)}" for case, form, n in lines]
    axes.set_yticks(range(len(lines)), texts, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel("time of the system / time of skforge")
    if lines:
        axes.legend(fontsize=8)
    save(figure, file, dpi=110)


def main(
    pipelines: harness.Parts = "",
    batches: harness.Batches = "1,64,4096",
    slot: harness.Slot = 0.05,
    output: harness.Output = None,
) -> None:
    """Measure, print each cell as it is found, and write pipelines.json and .md."""
    from threadpoolctl import threadpool_limits

    facts, wanted = machine(), harness.parts(pipelines)
    cases = {n: case for n, case in CASES.items() if harness.chosen(n, wanted)}
    with threadpool_limits(1):
        folded = harness.printed(
            (folding(name, case) for name, case in cases.items()),
            lambda one: f"{one.case}: folding {_folding(one)}",
        )
        found = harness.printed(
            cells(wanted, harness.numbers(batches), slot),
            lambda c: (
                f"{c.case:45}{c.form:14}{c.rows:6}  {c.system:14}{c.error or _text(c)}"
            ),
        )
    document = {"facts": facts, "folding": folded, "cells": found}
    harness.publish(output, "pipelines", document, page)
    if output is not None:
        plot(found, output / "pipelines.png")


if __name__ == "__main__":
    typer.run(main)
