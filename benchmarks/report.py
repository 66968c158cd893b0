"""Results as Markdown: a summary over models, then a table for each model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from harness import Document, table
from machine import in_words
from measure import Cell, Prepared, Result, results_of
from remote import OURS

from skforge.cli.report import duration
from skforge.exceptions import plural

MODELS = "<!-- models -->"


def page(document: Document) -> str:
    return to_markdown(results_of(document), document["machine"])


def to_markdown(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return the whole report; docs/benchmarks.md includes what is before MODELS."""
    parts = ["# Every model, system and batch size\n", summary(results)]
    parts += [in_words(facts) + "\n", MODELS + "\n"]
    parts += [table_of(result) for result in results]
    return "\n".join(parts)


# ------------------------------------------------------------ over all models


def best_peer(cells: Iterable[Cell]) -> Cell | None:
    timed = [c for c in cells if c.system not in OURS and c.seconds is not None]
    return min(timed, key=lambda cell: cell.seconds or math.inf, default=None)


def at(result: Result, threads: int, rows: int) -> list[Cell]:
    return [c for c in result.cells if (c.threads, c.rows) == (threads, rows)]


def summary(results: Sequence[Result]) -> str:
    """Return how much faster skforge is than the best peer, and its own times."""
    parts = []
    for threads in sorted({c.threads for r in results for c in r.cells}):
        found = [r for r in results if any(c.threads == threads for c in r.cells)]
        on = f" on {plural(threads, 'thread')}\n"
        parts += [f"## Times faster than the fastest other system,{on}", NOTE]
        parts += [ratios(found, threads), f"## Microseconds per row of skforge,{on}"]
        parts += [times(found, threads)]
    return "\n".join(parts)


NOTE = """A cell is the time of the fastest other system divided by skforge's time.
† That system's answers differ from the model's own library by more than rounding.
"""


def ratios(results: Sequence[Result], threads: int, ours: str = "") -> str:
    """Return the best peer's time by ours, and which peer it is.

    Without a name of ours, ratios are those measured side by side with `OURS[0]`.
    """
    sizes = sorted({c.rows for r in results for c in r.cells})
    rows = []
    found: dict[int, list[float]] = {n: [] for n in sizes}
    for result in results:
        row, names = [], []
        for n in sizes:
            cells = at(result, threads, n)
            best, ratio = best_peer(cells), ratio_to_best(cells, ours)
            if best is None or ratio is None:
                row.append("–")
                continue
            found[n].append(ratio)
            names.append((n, best.system))
            wrong = any(s.system == best.system and s.differs for s in result.systems)
            row.append(_ratio(ratio) + (" †" if wrong else ""))
        rows.append([result.model, *row, _by_size(names)])
    means = [f"**{geometric_mean(r):.1f}×**" if r else "" for r in found.values()]
    rows.append(["**geometric mean**", *means, ""])
    return _by_rows(sizes, "fastest other system", ":--", rows)


def times(results: Sequence[Result], threads: int, ours: str = OURS[0]) -> str:
    """Return our µs a row, and how long the compilation took."""
    sizes = sorted({c.rows for r in results for c in r.cells})
    rows = []
    for result in results:
        row = []
        for n in sizes:
            own = seconds_of(at(result, threads, n), ours)
            row.append("–" if own is None else _number(own / n * 1e6))
        rows.append([result.model, *row, _compile(result, ours)])
    return _by_rows(sizes, "compile", "--:", rows)


def _by_rows(
    sizes: Sequence[int], last: str, align: str, rows: Sequence[Sequence[str]]
) -> str:
    lines = table(["model", *(plural(n, "row") for n in sizes), last], rows)
    lines[1] = lines[1].removesuffix("--:|") + f"{align}|"
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def ratio_to_best(cells: Sequence[Cell], ours: str = "") -> float | None:
    best = best_peer(cells)
    if best is None or best.seconds is None or not ours:
        return best and best.ratio
    own = seconds_of(cells, ours)
    return own and best.seconds / own


def _by_size(names: list[tuple[int, str]]) -> str:
    """Return who is fastest, and from how many rows on.

    >>> _by_size([(1, "onnxruntime"), (8, "daal4py"), (64, "daal4py")])
    'onnxruntime; from 8 rows daal4py'
    """
    changes = [
        (n, name)
        for place, (n, name) in enumerate(names)
        if place == 0 or names[place - 1][1] != name
    ]
    texts = [f"from {plural(n, 'row')} {name}" for n, name in changes[1:]]
    return "; ".join([*(name for _, name in changes[:1]), *texts])


def seconds_of(cells: Iterable[Cell], system: str) -> float | None:
    return next((c.seconds for c in cells if c.system == system), None)


def _compile(result: Result, system: str) -> str:
    ours = next((s for s in result.systems if s.system == system), None)
    if ours is None or ours.compile_seconds is None:
        return "–"
    return duration(ours.compile_seconds)


# ------------------------------------------------------------ one model


def table_of(result: Result) -> str:
    facts = ", ".join(
        plural(value, name.removesuffix("s"))
        if isinstance(value, int)
        else f"{name} {value}"
        for name, value in result.facts.items()
    )
    lines = [
        f"## {result.model}\n",
        f"{facts}; rows: {result.rows_from}; load average "
        f"{result.load_average:.1f}, {result.measured}.\n",
    ]
    for threads in sorted({c.threads for c in result.cells}):
        lines += _table(result, threads)
    missing = [f"{s.system}: {s.reason}" for s in result.systems if s.reason]
    if missing:
        lines.append("Not measured – " + "; ".join(missing) + ".\n")
    return "\n".join(lines)


def _table(result: Result, threads: int) -> list[str]:
    sizes = sorted({c.rows for c in result.cells})
    columns = [f"{plural(n, 'row')}, {_bytes(result, n)}" for n in sizes]
    rows = []
    for known in result.systems:
        if known.reason is not None:
            continue
        cells = {
            c.rows: c
            for c in result.cells
            if (c.threads, c.system) == (threads, known.system)
        }
        row = [_cell(cells.get(n), n) for n in sizes]
        row += [_difference(known), _preparation(known)]
        rows.append([known.system, *row])
    heads = [f"{plural(threads, 'thread')}, µs a row", *columns]
    return [*table([*heads, "greatest difference", "prepare"], rows), ""]


def _cell(cell: Cell | None, n: int) -> str:
    if cell is None:
        return "–"
    if cell.seconds is None:
        return cell.reason or "–"
    text = _number(cell.seconds / n * 1e6)
    if cell.system == OURS[0] or cell.ratio is None:
        return text
    return f"{text} **{_ratio(cell.ratio)}**"


def _difference(known: Prepared) -> str:
    if known.same_bits:
        return "same bits"
    if known.max_abs_diff is None or math.isnan(known.max_abs_diff):
        return "other shape"
    return f"{known.max_abs_diff:.1e}{' †' if known.differs else ''}"


def _preparation(known: Prepared) -> str:
    return "–" if known.seconds is None else duration(known.seconds)


def _bytes(result: Result, rows: int) -> str:
    width = {"float32": 4, "float64": 8}[result.facts["dtype"]]
    size = float(rows * width * result.facts["features"])
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g}\N{NO-BREAK SPACE}{unit}"
        size /= 1000
    return f"{size:.3g}\N{NO-BREAK SPACE}GB"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}×" if value >= 100 else f"{value:.3g}×"
