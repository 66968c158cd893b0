"""What ``demo`` and ``bench`` print: proof of equal bits, then speed side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from skforge._timing import interleave

Rows = NDArray[np.floating[Any]]
Predict = Callable[[Rows], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A compiled function, and the source's own that must return the same bits."""

    name: str
    compiled: Predict
    source_name: str
    source: Predict


def differing_rows(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.intp]:
    """Return the rows whose bits differ, of arrays of one shape and dtype.

    Bits, not values: NaN equals itself, and 0.0 differs from -0.0.

    >>> differing_rows(np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan]))
    array([0])
    """
    ours, theirs = np.ascontiguousarray(ours), np.ascontiguousarray(theirs)
    if ours.size == 0:
        return np.arange(0)
    shape = (len(ours), -1)
    a = ours.reshape(shape).view(np.uint8)
    b = theirs.reshape(shape).view(np.uint8)
    return np.flatnonzero((a != b).any(axis=1))


def check(console: Console, pairs: Sequence[Pair], rows: Mapping[str, Rows]) -> bool:
    """Print for each pair and set of rows whether all bits agree; return if all do."""
    table = Table("skforge", "source", "rows", "bits", title="Predictions")
    good = True
    for pair in pairs:
        for kind, X in rows.items():
            difference = describe_difference(pair.compiled(X), pair.source(X))
            good = good and difference is None
            table.add_row(
                pair.name,
                pair.source_name,
                f"{len(X):,} {kind}",
                Text(difference or "identical", style="red" if difference else "green"),
            )
    console.print(table)
    return good


def describe_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> str | None:
    """Return how two results differ, in a few words, or None if no bit does."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} {ours.shape} is not {theirs.dtype} {theirs.shape}"
    bad = differing_rows(ours, theirs)
    if bad.size == 0:
        return None
    return f"{bad.size:,} differ, the first in row {bad[0]}"


def speed(
    console: Console,
    pairs: Sequence[Pair],
    X: Rows,
    batch_sizes: Sequence[int],
    *,
    seconds: float = 1.0,
) -> None:
    """Print medians for each batch size; all calls of a size share their rounds."""
    table = Table(title="Time of one call, one thread (medians of interleaved rounds)")
    table.add_column("rows", justify="right")
    table.add_column("skforge")
    table.add_column("time", justify="right")
    table.add_column("source")
    for column in ("time", "speedup"):
        table.add_column(column, justify="right")
    for size in batch_sizes:
        batch = np.ascontiguousarray(np.resize(X, (size, X.shape[1])))
        calls = {}
        for number, pair in enumerate(pairs):
            calls[f"skforge {number}"] = _bound(pair.compiled, batch)
            calls[f"source {number}"] = _bound(pair.source, batch)
        timing = interleave(calls, seconds=seconds)
        for number, pair in enumerate(pairs):
            ours, theirs = f"skforge {number}", f"source {number}"
            table.add_row(
                f"{size:,}" if number == 0 else "",
                pair.name,
                duration(timing.seconds(ours)),
                pair.source_name,
                duration(timing.seconds(theirs)),
                f"{_three_digits(timing.speedup(ours, over=theirs))}×",
            )
        table.add_section()
    console.print(table)


def own_speed(
    console: Console,
    name: str,
    predict: Predict,
    X: Rows,
    batch_sizes: Sequence[int],
    *,
    seconds: float = 1.0,
) -> None:
    """Print medians of the compiled function alone, for want of the source's."""
    table = Table(title="Time of one call, one thread (medians)")
    for column in ("rows", name, "per row"):
        table.add_column(column, justify="right")
    for size in batch_sizes:
        batch = np.ascontiguousarray(np.resize(X, (size, X.shape[1])))
        timing = interleave({name: _bound(predict, batch)}, seconds=seconds)
        taken = timing.seconds(name)
        table.add_row(f"{size:,}", duration(taken), duration(taken / size))
    console.print(table)


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit.

    >>> duration(1.234e-7), duration(0.00123456), duration(2.0)
    ('123 ns', '1.23 ms', '2.00 s')
    """
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _bound(predict: Predict, batch: Rows) -> Callable[[], object]:
    return lambda: predict(batch)
