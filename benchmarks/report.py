"""Results as Markdown: a summary over models, then a table for each model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from machine import in_words
from measure import Cell, Prepared, Result
from remote import OURS

from skforge.cli.report import count, duration


def to_markdown(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return the whole report."""
    parts = ["# Benchmark results\n", in_words(facts) + "\n"]
    parts.append(summary(results))
    parts += [table_of(result) for result in results]
    return "\n".join(parts)


# ------------------------------------------------------------ over all models


def best_peer(cells: Iterable[Cell]) -> Cell | None:
    """Return the fastest peer of some cells of one batch size."""
    timed = [c for c in cells if c.system not in OURS and c.seconds is not None]
    return min(timed, key=lambda cell: cell.seconds or math.inf, default=None)


def at(result: Result, threads: int, rows: int) -> list[Cell]:
    """Return the cells of one batch size and number of threads."""
    return [c for c in result.cells if (c.threads, c.rows) == (threads, rows)]


def summary(results: Sequence[Result]) -> str:
    """Return for each model: skforge's time, and the best peer's by it."""
    parts = []
    for threads in sorted({c.threads for r in results for c in r.cells}):
        sizes = sorted({c.rows for r in results for c in r.cells})
        head = f"| {_threads(threads)}: µs a row of skforge, ratio to the best peer | "
        lines = [head + " | ".join(f"{n:,} rows" for n in sizes) + " | compile |"]
        lines.append("|---|" + "--:|" * (len(sizes) + 1))
        ratios: dict[int, list[float]] = {n: [] for n in sizes}
        for result in results:
            if all(c.threads != threads for c in result.cells):
                continue
            row = []
            for n in sizes:
                cells = at(result, threads, n)
                best = best_peer(cells)
                if best is not None and best.ratio is not None:
                    ratios[n].append(best.ratio)
                row.append(_best(result, cells, best, n))
            row.append(_compile(result))
            lines.append(f"| {result.model} | " + " | ".join(row) + " |")
        means = [f"**{_geomean(ratios[n]):.1f}×**" if ratios[n] else "" for n in sizes]
        lines.append("| geometric mean | " + " | ".join(means) + " | |")
        parts.append("\n".join(lines) + "\n")
    parts.append(
        "Ratio: time of the fastest peer by that of skforge. † its answers differ from "
        "those of the model's own library by more than rounding, see its table.\n"
    )
    return "\n".join(parts)


def _compile(result: Result) -> str:
    ours = next((s for s in result.systems if s.system == OURS[0]), None)
    if ours is None or ours.compile_seconds is None:
        return "–"
    return duration(ours.compile_seconds)


def _best(result: Result, cells: list[Cell], best: Cell | None, n: int) -> str:
    ours = next((c for c in cells if c.system == OURS[0]), None)
    if ours is None or ours.seconds is None:
        return "–"
    text = _number(ours.seconds / n * 1e6)
    if best is None or best.ratio is None:
        return text
    wrong = any(s.system == best.system and s.differs for s in result.systems)
    return f"{text} **{_ratio(best.ratio)}** {best.system}{' †' if wrong else ''}"


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# ------------------------------------------------------------ one model


def table_of(result: Result) -> str:
    """Return all systems of one model, and why some are missing."""
    facts = ", ".join(
        count(value, name.removesuffix("s"))
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
        lines.append("Not here – " + "; ".join(missing) + ".\n")
    return "\n".join(lines)


def _table(result: Result, threads: int) -> list[str]:
    sizes = sorted({c.rows for c in result.cells})
    columns = [f"{n:,} rows, {_bytes(result, n)}" for n in sizes]
    head = f"| {_threads(threads)}, µs a row | " + " | ".join(columns)
    lines = [
        head + " | max abs diff | prepare |",
        "|---|" + "--:|" * (len(sizes) + 2),
    ]
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
        lines.append(f"| {known.system} | " + " | ".join(row) + " |")
    return [*lines, ""]


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
    if known.seconds is None:
        return "–"
    text = duration(known.seconds)
    if known.compile_seconds is None:
        return text
    return f"{text} (compile {duration(known.compile_seconds)})"


def _bytes(result: Result, rows: int) -> str:
    width = {"float32": 4, "float64": 8}[result.facts["dtype"]]
    size = float(rows * width * result.facts["features"])
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}×" if value >= 100 else f"{value:.3g}×"
