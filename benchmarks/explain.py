"""SHAP values and partial dependence: skforge beside the libraries that have them.

    python -m benchmarks.explain --output benchmarks/results

Everything runs in one process. Answers are compared with those of the library that
explains the model by itself before anything is timed; one of skforge's that is further
away than its bound ends the run. Times are medians of rounds in which the systems take
turns. A call that would take longer than ``--call`` gets fewer rows, and scikit-learn's
partial dependence a few points of the grid.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from statistics import median
from typing import Annotated, Any

import explain_cases as cases
import harness
import numpy as np
import typer
from explain_cases import N_BACKGROUND
from machine import in_words, machine

OURS = "skforge"
#: Bounds of the difference from the model's own library, as a share of the sum of all
#: |contributions| of a row.
BOUNDS = {"float32": 1e-5, "float64": 1e-9}
ROUNDS, ROUNDS_OF_SLOW = 7, 3
ALL_KINDS = (*cases.KINDS, cases.AS_MANY)
#: Seconds of a call that is slow.
SLOW = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """One system with one number of rows and of threads; seconds of one row."""

    case: str
    kind: str
    rows: int
    threads: int
    system: str
    seconds: float | None = None
    #: Rows that were timed in a call: fewer where a call would take too long.
    timed: int = 0
    #: By the time of skforge in the same round; the median.
    ratio: float | None = None
    #: Greatest difference from the model's own library, by the sum of all
    #: |contributions| of the row.
    difference: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Preparing:
    """Seconds until the first row is explained."""

    case: str
    kind: str
    #: Reading the model, and what its first prediction and first explanation compile.
    load: float = 0.0
    predict: float = 0.0
    explain: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Partial dependence of one feature on a grid; seconds of a whole grid."""

    case: str
    kind: str
    rows: int
    points: int
    skforge: float
    #: scikit-learn's function with the compiled forest, and with the model.
    predictions: float
    sklearn: float
    #: Greatest difference from scikit-learn's, by the greatest absolute value.
    difference: float


# ------------------------------------------------------------ measuring


def preparing(name: str, case: cases.Case, kind: str) -> Preparing:
    """Time the first call of a model that nothing is compiled for."""
    from skforge import compile_forest, load_forest

    model, rows = case.made()
    start = time.perf_counter()
    forest = load_forest(model)
    loaded = time.perf_counter()
    module = compile_forest(forest)
    module.predict_raw(rows[:1])
    predicted = time.perf_counter()
    try:
        module.predict_contribs(rows[:1], **cases.options_of(case, kind))
    except Exception as error:  # noqa: BLE001 - said in the table
        return Preparing(name, kind, error=_line(error))
    explained = time.perf_counter()
    return Preparing(
        name, kind, loaded - start, predicted - loaded, explained - predicted
    )


def not_installed(systems: list[str]) -> dict[str, str]:
    missing = {}
    for system in systems:
        try:
            import_module(system.lower().split()[0])
        except ImportError as error:
            missing[system] = _line(error)
    return missing


def answers(
    name: str, case: cases.Case, kind: str, threads: int, systems: list[str]
) -> tuple[dict[str, cases.Answer], dict[str, float], dict[str, str]]:
    """Return the systems that explain a model, how far they are apart, and errors."""
    rows = case.made()[1][: 2 if kind == cases.INTERACTIONS else 16]
    calls: dict[str, cases.Answer] = {}
    errors: dict[str, str] = {}
    made: dict[str, Any] = {}
    for system in systems:
        try:
            calls[system] = cases.SYSTEMS[system](case, kind, threads)
            made[system] = np.asarray(calls[system](rows))
        except Exception as error:  # noqa: BLE001 - libraries raise all kinds
            calls.pop(system, None)
            if text := _line(error):
                word = (
                    "" if isinstance(error, cases.CannotError) else type(error).__name__
                )
                errors[system] = f"cannot: {word} {text}".replace("  ", " ")
    source = case.source if case.source in made else "shap"
    apart = {}
    for system, answer in made.items():
        if source in made:
            apart[system] = _apart(answer, made[source], kind)
    # shap keeps weights of interventional values in float32
    single = kind == cases.INTERVENTIONAL or (
        OURS in made and made[OURS].dtype == np.float32
    )
    bound = BOUNDS["float32" if single else "float64"]
    if apart.get(OURS, 0.0) > bound:
        raise SystemExit(f"{name}, {kind}: {apart[OURS]:.1e} apart from {source}")
    return calls, apart, errors


def _apart(answer: Any, source: Any, kind: str) -> float:
    """Return the greatest difference by the sum of |contributions| of its row.

    The expected value is compared where both have it.
    """
    width = min(answer.shape[-1], source.shape[-1])
    if kind == cases.INTERACTIONS:
        answer, source = answer[:, :width, :width], source[:, :width, :width]
    axes = tuple(range(1, source.ndim))
    scale = np.abs(source).sum(axis=axes, keepdims=True)
    return float((np.abs(answer - source) / scale).max())


def _line(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, cases.CannotError)
        else harness.short(error, 120)
    )


def batches(call: cases.Answer, rows: Any, n: int, most: float) -> list[Any]:
    """Return batches of as many rows as a call may have, which are taken in turn."""
    row = min(harness.seconds(call, rows[:1]) for _ in range(2))
    if n > 1 and row < most / 16:
        row = harness.seconds(call, rows[: min(n, 16)]) / min(n, 16)
    n = max(1, min(n, int(most / max(row, 1e-9))))
    return [rows[i * n : (i + 1) * n] for i in range(max(1, min(8, len(rows) // n)))]


def _a_row(sample: Callable[[], float], pool: list[Any]) -> float:
    return sample() / len(pool[0])


def cells(
    name: str,
    case: cases.Case,
    kind: str,
    threads: int,
    sizes: list[int],
    systems: list[str],
    slot: float,
    most: float,
) -> Iterator[Cell]:
    calls, apart, errors = answers(name, case, kind, threads, systems)
    rows = case.made()[1][:-N_BACKGROUND]
    for n in sizes:
        head = (name, kind, n, threads)
        for system, text in errors.items():
            yield Cell(*head, system, error=text)
        pools = {
            system: batches(call, rows, n, 60.0 if system == OURS else most)
            for system, call in calls.items()
        }
        samples = {
            system: partial(
                _a_row, harness.sampler(call, pools[system], slot), pools[system]
            )
            for system, call in calls.items()
        }
        slow = [s for s in samples if harness.seconds(calls[s], pools[s][0]) >= SLOW]
        times = harness.take_turns(samples, ROUNDS_OF_SLOW)
        fast = {system: take for system, take in samples.items() if system not in slow}
        for system, more in harness.take_turns(fast, ROUNDS - ROUNDS_OF_SLOW).items():
            times[system] += more
        for system, own in times.items():
            yield Cell(
                *head,
                system,
                median(own),
                len(pools[system][0]),
                # The slow take part in the first rounds.
                harness.ratio(own, times.get(OURS, [])),
                apart.get(system),
            )


def grids(name: str, n: int, points: int, few: int = 4) -> Iterator[Grid]:
    """Measure the partial dependence of a model; scikit-learn's on few points."""
    from sklearn import inspection

    from skforge import CompiledForest, partial_dependence

    model, rows = cases.GRIDS[name](n)
    fast = CompiledForest(model, tuning="off", n_jobs=1).fit(rows[:1000])
    kinds = {"average": {}, "individual": {"kind": "individual"}}
    if hasattr(fast, "predict_proba"):
        kinds["raw scores"] = {"response_method": "predict_raw"}
    theirs = partial(inspection.partial_dependence, X=rows, features=[1])
    whole, part = {"grid_resolution": points}, {"grid_resolution": few}
    for kind, options in kinds.items():
        ours = partial(partial_dependence, fast, rows, [1], **options)
        same = {} if "response_method" in options else options
        key = "individual" if kind == "individual" else "average"
        found, exact = ours(**part)[key], ours(exact=True, **part)[key]
        apart = float(np.abs(found - exact).max() / np.abs(exact).max())
        if apart > BOUNDS["float32" if exact.dtype == np.float32 else "float64"]:
            raise SystemExit(f"{name}, {kind}: {apart:.1e} apart from scikit-learn")
        calls = {
            "skforge": partial(ours, **whole),
            "predictions": partial(theirs, fast, **whole, **same),
            "sklearn": partial(theirs, model, method="brute", **part, **same),
        }
        samples = {
            system: partial(harness.seconds, lambda call: call(), call)
            for system, call in calls.items()
        }
        calls["skforge"]()  # compiles
        times = {s: median(t) for s, t in harness.take_turns(samples, 3).items()}
        times["sklearn"] *= points / few
        yield Grid(name, kind, n, points, **times, difference=apart)


def large(threads: int, systems: list[str], most: float) -> Iterator[Cell]:
    """Measure calls with other background rows each time, as many as rows.

    Where a call of shap would take more than ``most`` seconds, it gets fewer.
    """
    for n in cases.LARGE:
        rows, sets = cases.large_rows(n)
        head = (cases.LARGE_CASE, cases.AS_MANY, n, threads)
        calls: dict[str, Callable[[], float]] = {}
        counts: dict[str, int] = {}
        made: dict[str, Any] = {}
        for system in systems:
            try:
                call = cases.LARGE_SYSTEMS[system](sets, threads)
                made[system] = np.asarray(call(rows[:16]))
            except Exception as error:  # noqa: BLE001 - libraries raise all kinds
                yield Cell(*head, system, error=f"cannot: {_line(error)}")
                continue
            counts[system] = n
            if system == "shap":  # it alone takes time for pairs
                row = harness.seconds(call, rows[:16]) / 16
                counts[system] = max(16, min(n, int(most / row)))
            calls[system] = partial(harness.seconds, call, rows[: counts[system]])
        source = next((s for s in ("shap", "Woodelf") if s in made), OURS)
        times = harness.take_turns(calls, ROUNDS_OF_SLOW)
        a_row = {s: [t / counts[s] for t in own] for s, own in times.items()}
        for system, own in a_row.items():
            ratio = harness.ratio(own, a_row.get(OURS, []))
            apart = _apart(made[system], made[source], cases.AS_MANY)
            yield Cell(*head, system, median(own), counts[system], ratio, apart)


# ------------------------------------------------------------ reporting

EXPLAINED = f"""\
Each cell has the µs a row and, in bold, that time divided by skforge's time for the
same rows. The number of rows is that of one call. † marks calls of fewer rows: a call
of so many would take too long. XGBoost's time includes making the DMatrix. shap uses
one thread. Without background rows it passes XGBoost's and LightGBM's models to these
libraries; there are {N_BACKGROUND} background rows. shapiq takes one row at a time.
fasttreeshap 0.1.6 does not import with NumPy 2. A table leaves out
systems that it has no figures for.

*apart* is the greatest difference from the library that is named with the model,
divided by the sum of all |contributions| of the row. For random forests and
for interventional values that library is shap. XGBoost computes in float32."""


OTHER_BACKGROUND = """\
Interventional values of rows and as many background rows. Each call has other
background rows, so that all that is computed from them is timed."""


def page(document: harness.Document) -> str:
    found, missing = harness.records(Cell, document["cells"]), document["missing"]
    parts: list[Any] = ["# SHAP values", _summary(found), EXPLAINED]
    parts.append(in_words(document["facts"]))
    parts += [f"{system} was not measured: {why}." for system, why in missing.items()]
    for kind in ALL_KINDS:
        mine = [cell for cell in found if cell.kind == kind]
        if mine:
            parts.append(f"## {kind.capitalize()}")
            parts.append(OTHER_BACKGROUND if kind == cases.AS_MANY else "")
        for case in dict.fromkeys(cell.case for cell in mine):
            parts += _table([cell for cell in mine if cell.case == case], case)
    parts += _dependence(harness.records(Grid, document.get("grids", [])))
    heads = ["model", "", "reading it", "its first prediction", "its first explanation"]
    prepared = [
        [one.case, one.kind, (one.error and "| |") or text]
        for one in harness.records(Preparing, document["preparing"])
        for text in [f"{one.load:.2f} | {one.predict:.2f} | {one.explain:.2f}"]
    ]
    parts += ["## Compilation", "Seconds until the first row is explained."]
    return harness.paragraphs(*parts, harness.table(heads, prepared, texts=2))


def _dependence(found: list[Grid]) -> list[Any]:
    rows = [
        [g.case, g.kind, f"{g.rows:,}", str(g.points), f"{1e3 * g.skforge:.0f}"]
        + [
            f"{t:.2f} **{harness.digits(t / g.skforge)}×**"
            for t in (g.predictions, g.sklearn)
        ]
        + [f"{g.difference:.1e}"]
        for g in found
    ]
    heads = ["model", "", "rows", "points", "skforge, ms", "predictions, s"]
    heads += ["scikit-learn, s", "apart"]
    text = (
        "One feature, one thread. *Predictions* is scikit-learn's function with the "
        "compiled forest; *scikit-learn* has the model itself, on 4 points, and is "
        "given for all."
    )
    cells = harness.table(heads, rows, texts=2)
    return ["## Partial dependence", text, cells] if found else []


def _summary(found: list[Cell]) -> list[str]:
    """Return the table of the model's own library by skforge, on one thread.

    In brackets, skforge has vectors of 256 bits.
    """
    found = [cell for cell in found if cell.kind != cases.AS_MANY]
    sizes = list(dict.fromkeys(cell.rows for cell in found))
    rows = []
    for name, kind in dict.fromkeys((cell.case, cell.kind) for cell in found):
        source = "shap" if kind == cases.INTERVENTIONAL else cases.CASES[name].source
        ratios = {
            (c.rows, c.system): c.ratio
            for c in found
            if (c.case, c.kind, c.threads) == (name, kind, 1) and c.ratio is not None
        }
        texts = []
        for n in sizes:
            theirs, halves = (ratios.get((n, s)) for s in (source, cases.IN_HALVES))
            text = f"{harness.digits(theirs)}×" if theirs else ""
            if theirs and halves:
                text += f" ({harness.digits(theirs / halves)}×)"
            texts.append(text)
        rows.append([f"{name}: {kind}", source, *texts])
    heads = ["times as fast, one thread (with AVX2)", "beside"]
    heads += map(harness.rows_a_call, sizes)
    return harness.table(heads, rows, texts=2)


def _table(mine: list[Cell], case: str) -> list[Any]:
    timed = [c.system for c in mine if c.seconds is not None]
    systems = [system for system in (*cases.SYSTEMS, "Woodelf") if system in timed]
    texts = {(c.rows, c.threads, c.system): _text(c) for c in mine}
    rows = [
        [f"{n:,}, {threads}", *(texts.get((n, threads, s), "") for s in systems)]
        for n, threads in dict.fromkeys((cell.rows, cell.threads) for cell in mine)
    ]
    apart = {c.system: c.difference for c in mine if c.difference is not None}
    rows.append(
        ["apart", *(f"{apart[s]:.1e}" if apart.get(s) else "" for s in systems)]
    )
    parts: list[Any] = [f"### {case}"]
    parts.append(harness.table(["rows, threads", *systems], rows))
    for system in (*cases.SYSTEMS, "Woodelf"):
        errors = dict.fromkeys(c.error for c in mine if c.system == system and c.error)
        parts += [f"{system} – {text}" for text in errors]
    return parts


def _text(cell: Cell) -> str:
    if cell.seconds is None:
        return ""
    ratio = None if cell.system == OURS else cell.ratio
    return harness.beside_ours(
        cell.seconds, ratio, "†" if cell.timed < cell.rows else ""
    )


def _words(cell: Cell) -> str:
    head = f"{cell.case:42}{cell.kind:15}{cell.rows:6}{cell.threads:3}"
    return f"{head}  {cell.system:13}{cell.error or _text(cell)}"


def main(
    models: harness.Parts = "",
    kinds: Annotated[str, typer.Option(help="Kinds, by commas.")] = ",".join(
        (*ALL_KINDS, cases.DEPENDENCE)
    ),
    batches: harness.Batches = "1,64,1024",
    threads: Annotated[str, typer.Option(help="Numbers of threads.")] = "1,2",
    systems: Annotated[str, typer.Option(help="Systems.")] = ",".join(cases.SYSTEMS),
    slot: harness.Slot = 0.05,
    call: Annotated[float, typer.Option(help="Most seconds of a call.")] = 2.0,
    quick: Annotated[bool, typer.Option(help="One thread, 1 and 64 rows.")] = False,
    output: harness.Output = None,
) -> None:
    """Measure, print each cell as it is found, and write explain.json and .md."""
    from threadpoolctl import threadpool_limits

    os.environ.setdefault("SKFORGE_CACHE", "off")
    facts = machine()
    found: list[Cell] = []
    prepared: list[Preparing] = []
    missing = not_installed([*harness.parts(systems), "Woodelf"])
    taking = [name for name in harness.parts(systems) if name not in missing]
    print(missing or "", flush=True)
    if quick:
        batches, threads, slot, call = "1,64", "1", 0.02, 0.3
    sizes, wanted = harness.numbers(batches), harness.parts(kinds)
    asked = partial(harness.chosen, wanted=harness.parts(models))
    for name, case in cases.CASES.items():
        for kind in case.kinds:
            if not asked(name) or kind not in wanted:
                continue
            prepared.append(preparing(name, case, kind))
            print(f"{name}, {kind}: {prepared[-1]}", flush=True)
            for n in harness.numbers(threads):
                with threadpool_limits(n):
                    some = cells(name, case, kind, n, sizes, taking, slot, call)
                    found += harness.printed(some, _words)
    measured: list[Grid] = []
    for name in filter(asked, cases.GRIDS if cases.DEPENDENCE in wanted else ()):
        size = (10_000, 50) if quick else (100_000, 200)
        with threadpool_limits(1):
            measured += harness.printed(grids(name, *size), str)
    large_systems = [s for s in cases.LARGE_SYSTEMS if s == "Woodelf" or s in taking]
    if cases.AS_MANY in wanted and asked(cases.LARGE_CASE):
        for n in harness.numbers(threads):
            some = large(n, [s for s in large_systems if s not in missing], call)
            found += harness.printed(some, _words)
    document = {
        "facts": facts,
        "preparing": prepared,
        "missing": missing,
        "cells": found,
        "grids": measured,
    }
    harness.publish(output, "explain", document, page)


if __name__ == "__main__":
    typer.run(main)
