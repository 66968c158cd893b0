"""Whole pipelines: skforge beside scikit-learn, ONNX Runtime and Hummingbird.

    python -m benchmarks.pipelines --output benchmarks/results

Every system gets the whole pipeline, preprocessing included, in one process and on one
thread. Answers are compared with scikit-learn's first; one of skforge's that differs
in a bit ends the run. Times are medians of rounds in which the systems take turns. A
system that cannot do a pipeline or a form of rows says so in its cell.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
# The modules beside this one are no package: scripts find each other so.
sys.path.insert(0, str(ROOT / "benchmarks"))

from forms import differences  # noqa: E402
from machine import in_words, machine  # noqa: E402
from pipelines_cases import CASES, Case  # noqa: E402
from pipelines_peers import MAPPING, SYSTEMS, Way, forms_of  # noqa: E402

from skforge import UnsupportedModelError, load_forest  # noqa: E402

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
        median(_seconds(load_forest, one) for _ in range(3))
        for one in (model, model[-1])
    )
    return Folding(name, whole, alone, last.n_predicates, forest.n_predicates)


def _seconds(call: Callable[[Any], Any], given: Any) -> float:
    start = time.perf_counter()
    call(given)
    return time.perf_counter() - start


def loaded(case: Case) -> tuple[dict[str, dict[str, Way]], dict[str, str]]:
    """Return the ways of all systems, and why one has none."""
    ways: dict[str, dict[str, Way]] = {}
    errors: dict[str, str] = {}
    for system, load in SYSTEMS.items():
        try:
            ways[system] = load(case)
        except UnsupportedModelError as error:
            errors[system] = f"refused: {_line(error)}"
        except Exception as error:  # noqa: BLE001 - converters raise all kinds
            errors[system] = f"cannot: {type(error).__name__}: {_line(error)}"
    return ways, errors


def _line(error: Exception) -> str:
    words = " ".join(str(error).replace("|", "/").split())
    return words if len(words) <= 160 else words[:160].rpartition(" ")[0] + " ..."


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
    """Compare the systems that take a form, and time them at each number of rows."""
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
            text = f"refused: {type(error).__name__}: {_line(error)}"
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
        calls = {
            system: (ways[system].call, _pool(ways[system], draw, n))
            for system in found
        }
        taken = in_turns(calls, slot)
        for system, times in taken.items():
            ratio = None
            if OURS in taken:
                ratio = median(
                    t / ours for t, ours in zip(times, taken[OURS], strict=True)
                )
            yield Cell(name, form, n, system, median(times), ratio, *found[system])


def _pool(way: Way, draw: Callable[[int, int], tuple[Any, Any]], n: int) -> list[Any]:
    frame, _ = draw(n + POOL, 2)
    return [way.make(frame[i : i + n].reset_index(drop=True)) for i in range(POOL)]


def in_turns(
    calls: dict[str, tuple[Callable[[Any], Any], list[Any]]], slot: float
) -> dict[str, list[float]]:
    """Return seconds a call in each round; in a round, each system has a slot.

    A slot begins with a call that is not timed, since the others had the caches.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = {name: _count(*call, slot) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, (call, pool) in calls.items():
                call(pool[-1])
                start = time.perf_counter()
                for i in range(counts[name]):
                    call(pool[i % POOL])
                times[name].append((time.perf_counter() - start) / counts[name])
    return times


def _count(call: Callable[[Any], Any], pool: list[Any], slot: float) -> int:
    """Return how many calls fill a slot, once a habit of small calls was seen."""
    for i in range(40):
        taken = _seconds(call, pool[i % POOL])
        if taken > slot:
            return 1
    return max(1, int(slot / taken))


def cells(names: list[str], sizes: list[int], slot: float) -> Iterator[Cell]:
    """Measure cell by cell."""
    for name, case in CASES.items():
        if names and not any(part in name for part in names):
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


def to_markdown(found: list[Cell], folded: list[Folding], facts: dict[str, Any]) -> str:
    """Write a table a pipeline."""
    lines = ["# Pipelines", "", EXPLAINED, "", in_words(facts), ""]
    for case in dict.fromkeys(cell.case for cell in found):
        mine = [cell for cell in found if cell.case == case]
        lines += [f"## {case}", "", f"| rows | {' | '.join(SYSTEMS)} |"]
        lines += ["|---|" + "--:|" * len(SYSTEMS)]
        for form, n in dict.fromkeys((cell.form, cell.rows) for cell in mine):
            texts = {c.system: _text(c) for c in mine if (c.form, c.rows) == (form, n)}
            row = " | ".join(texts.get(system, "") for system in SYSTEMS)
            lines.append(f"| {form}, {n:,} | {row} |")
        lines += [f"| apart | {' | '.join(_apart(mine, s) for s in SYSTEMS)} |", ""]
        for system in SYSTEMS:
            errors = dict.fromkeys(c.error for c in mine if c.system == system)
            lines += [f"{system} – {text}\n" for text in errors if text]
    lines += ["## Folding", "", "| pipeline | load_forest | of it the forest alone "]
    lines[-1] += "| tests | tests of raw values | s for 60,000 tests |"
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for one in folded:
        lines.append(f"| {one.case} | {_folding(one)} |")
    return "\n".join(lines)


def _text(cell: Cell) -> str:
    if cell.seconds is None:
        return cell.error.partition(":")[0]
    us = cell.seconds * 1e6
    text = f"{us:,.{1 if us < 10 else 0}f}"
    if cell.system == OURS or cell.ratio is None:
        return text
    return f"{text} **{cell.ratio:,.{1 if cell.ratio < 10 else 0}f}×**"


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
    """Draw the other systems' times by that of skforge."""
    import matplotlib.pyplot as plt

    timed = [c for c in found if c.ratio is not None and c.system != OURS]
    lines = list(dict.fromkeys((c.case, c.form, c.rows) for c in timed))
    height = 1.4 + 0.24 * len(lines)
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    for system, marker in zip(SYSTEMS, "osD^", strict=False):
        own = [c for c in timed if c.system == system]
        if own:
            y = [lines.index((c.case, c.form, c.rows)) for c in own]
            axes.scatter([c.ratio for c in own], y, label=system, marker=marker, s=28)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    texts = [f"{case}, {form}, {n:,} row{'s'[: n > 1]}" for case, form, n in lines]
    axes.set_yticks(range(len(lines)), texts, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel("time of the system / time of skforge")
    if lines:
        axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main(
    pipelines: Annotated[str, typer.Option(help="Parts of names, by commas.")] = "",
    batches: Annotated[str, typer.Option(help="Rows a call.")] = "1,64,4096",
    slot: Annotated[float, typer.Option(help="Seconds of a sample.")] = 0.05,
    output: Annotated[Path | None, typer.Option(help="Folder of results.")] = None,
) -> None:
    """Measure, print each cell as it is found, and write pipelines.json and .md."""
    from threadpoolctl import threadpool_limits

    facts, found, folded = machine(), [], []
    wanted = [part for part in pipelines.split(",") if part]
    sizes = [int(size) for size in batches.split(",")]
    with threadpool_limits(1):
        for name, case in CASES.items():
            if not wanted or any(part in name for part in wanted):
                folded.append(folding(name, case))
                print(f"{name}: folding {_folding(folded[-1])}", flush=True)
        for cell in cells(wanted, sizes, slot):
            found.append(cell)
            head = f"{cell.case:45}{cell.form:14}{cell.rows:6}  {cell.system:14}"
            print(f"{head}{cell.error or _text(cell)}", flush=True)
    if output is not None:
        plot(found, output / "pipelines.png")
        content = {
            "facts": facts,
            "folding": [asdict(one) for one in folded],
            "cells": [asdict(cell) for cell in found],
        }
        (output / "pipelines.json").write_text(json.dumps(content, indent=1) + "\n")
        text = to_markdown(found, folded, facts)
        (output / "pipelines.md").write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
