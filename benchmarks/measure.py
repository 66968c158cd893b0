"""One model on all systems: answers compared first, then interleaved rounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Document, ratio, stored
from models import Model
from numpy.typing import NDArray
from remote import OURS, Remote, SystemFailedError
from systems import OWN

Array = NDArray[Any]
Point = tuple[int, float]  # rows, and the seconds of a call
Sample = Mapping[str, float]
ANSWER_SECONDS = 10.0  # for answers that are compared


@dataclass(frozen=True, slots=True)
class Limits:
    """How much time, and how much memory, the measurement may take."""

    rounds: int = 5  # samples of each system in a cell
    slot: float = 0.03  # seconds of a sample: as many calls as fill them
    call: float = 2.0  # a call expected to take longer is not made; the table says so
    cell: float = 1.0  # of a system in a cell; a slow one gets fewer rounds, at least 3
    prepare: float = 60.0  # seconds a system may take to load and compile a model
    memory: float = 6e9  # bytes that the batches of all systems together may take


@dataclass(slots=True)
class Prepared:
    """What is known of a system before it is timed."""

    system: str
    reason: str | None = None  # why it is not in the table; then nothing else is
    seconds: float | None = None  # to load, compile and answer once
    compile_seconds: float | None = None
    answer: str | None = None
    compared_rows: int = 0  # slow systems answer only some
    max_abs_diff: float | None = None  # NaN: shapes are not comparable
    same_bits: bool | None = None
    differs: bool = False  # by more than rounding: a 10,000th of the greatest answer


@dataclass(slots=True)
class Cell:
    """One system at one batch size and number of threads."""

    threads: int
    rows: int
    system: str
    seconds: float | None = None  # of one call, median of rounds
    rounds: int = 0
    ratio: float | None = None  # of its time to skforge's, median within rounds
    reason: str | None = None  # why it was not timed
    readings: list[float] = field(default_factory=list)  # seconds, round by round


@dataclass(slots=True)
class Result:
    model: str
    kind: str
    facts: dict[str, Any]
    rows_from: str
    measured: str = ""  # when it was done
    limits: dict[str, float] = field(default_factory=dict)
    load_average: float = 0.0  # at the end; more than the threads in use: not quiet
    systems: list[Prepared] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)


def read(folder: Path, name: str = "results") -> list[Result]:
    """Return the results in a folder, of ``table.py`` or ``weak_cells.py``."""
    return results_of(stored(folder, name) or {"models": []})


def results_of(document: Document) -> list[Result]:
    return [
        Result(
            **model
            | {
                "systems": [Prepared(**system) for system in model["systems"]],
                "cells": [Cell(**cell) for cell in model["cells"]],
            }
        )
        for model in document["models"]
    ]


def measure(
    model: Model,
    remotes: Sequence[Remote],
    sizes: Sequence[int],
    threads: Sequence[int],
    limits: Limits,
    say: Callable[[str], None] = print,
) -> Result:
    """Return the table of one model.

    Its own library must be among the remotes; SystemFailedError if that fails.
    """
    result = Result(model.name, model.kind, model.facts, model.rows_from)
    truth = _truth(model, remotes, limits)
    ready = []
    for remote in remotes:
        prepared = prepare(remote, model, truth, limits)
        result.systems.append(prepared)
        if prepared.reason is None:
            ready.append(remote)
        say(f"  {prepared.system}: {prepared.reason or _agreement(prepared)}")
    for count in threads:
        for remote in list(ready):
            try:
                remote.ask("threads", count=count)
            except SystemFailedError as error:
                ready.remove(remote)
                say(f"  {remote.entry.name}: {error}")
        seen: dict[str, list[Point]] = {}
        for size in sizes:
            cells = _cells(model, ready, size, count, seen, limits)
            result.cells += cells
            shown = (
                f"{c.system} {c.seconds / size * 1e6:.3g}" for c in cells if c.seconds
            )
            say(f"  {count} thread(s), {size:,} rows, µs a row: " + ", ".join(shown))
    result.measured = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    result.limits = asdict(limits)
    result.load_average = os.getloadavg()[0]
    return result


# ------------------------------------------------------------ answers


def _truth(model: Model, remotes: Sequence[Remote], limits: Limits) -> dict[str, Array]:
    """Return the own library's answers on one thread: raw scores, and transformed."""
    own = next(r for r in remotes if r.entry.name == OWN[model.kind])
    answer = own.load(model, limits.prepare)["answer"]
    own.ask("threads", count=1)
    truth = {answer: own.array("answers", seconds_left=2 * ANSWER_SECONDS)}
    with suppress(SystemFailedError):
        truth["value"] = own.array("transformed", seconds_left=2 * ANSWER_SECONDS)
    return truth


def prepare(
    remote: Remote, model: Model, truth: dict[str, Array], limits: Limits
) -> Prepared:
    name = remote.entry.name
    try:
        loaded = remote.load(model, limits.prepare)
        remote.ask("threads", count=1)
        found = remote.array("answers", seconds_left=ANSWER_SECONDS)
    except SystemFailedError as error:
        return Prepared(name, reason=str(error))
    known = Prepared(
        name, None, loaded["seconds"], loaded["compile_seconds"], loaded["answer"]
    )
    expected = truth.get(loaded["answer"])
    if expected is None:
        known.max_abs_diff, known.same_bits = math.nan, False
        known.differs = True
    else:
        n = known.compared_rows = min(len(found), len(expected))
        expected = expected[:n]
        known.max_abs_diff, known.same_bits, known.differs = agreement(
            found[:n], expected
        )
    return known


def agreement(found: Array, expected: Array) -> tuple[float, bool, bool]:
    """Return the greatest difference, if all bits agree, and if it is no rounding."""
    difference, same = compare(found, expected)
    greatest = float(np.max(np.abs(expected), initial=0))
    return difference, same, not difference <= 1e-4 * greatest


def compare(found: Array, expected: Array) -> tuple[float, bool]:
    """Return the greatest difference, and if all bits agree.

    Of two columns that are the chances of no and yes, one may be left out.

    >>> compare(np.array([[0.25, 0.75]]), np.array([0.75]))
    (0.0, True)
    >>> compare(np.array([1.0, 2.0]), np.array([1.0]))
    (nan, False)
    """
    found, expected = _columns(found), _columns(expected)
    if found.shape[1] != expected.shape[1] and 2 in (found.shape[1], expected.shape[1]):
        found, expected = found[:, -1:], expected[:, -1:]
    if found.shape != expected.shape:
        return math.nan, False
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    unequal = (found != expected) & ~(np.isnan(found) & np.isnan(expected))
    same = found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
    return float(np.max(apart[unequal], initial=0)), same


def _columns(a: Array) -> Array:
    a = np.squeeze(a, axis=tuple(i for i in range(1, a.ndim) if a.shape[i] == 1))
    return np.ascontiguousarray(a.reshape(len(a), -1))


def _agreement(known: Prepared) -> str:
    diff = "same bits" if known.same_bits else f"max |diff| {known.max_abs_diff:.1e}"
    return f"ready in {known.seconds:.2f} s, {diff}"


# ------------------------------------------------------------ time


def _cells(
    model: Model,
    remotes: Sequence[Remote],
    size: int,
    threads: int,
    seen: dict[str, list[Point]],
    limits: Limits,
) -> list[Cell]:
    """Time one batch size; ``seen`` keeps rows and seconds of smaller ones."""
    cells = {r.entry.name: Cell(threads, size, r.entry.name) for r in remotes}
    of_name = {r.entry.name: r for r in remotes}
    rows_of = max(1, min(64, 4096 // size)) * size
    itemsize = np.dtype(model.facts["dtype"]).itemsize
    needed = rows_of * model.facts["features"] * itemsize * len(remotes)
    if needed > limits.memory:
        for cell in cells.values():
            cell.reason = f"batches of all take {needed / 1e9:.1f} GB"
    samples = timed(
        cells,
        size,
        seen,
        limits,
        lambda name: of_name[name].ask("warm", rows=size, slot=limits.slot),
        lambda name: of_name[name].ask("sample"),
    )
    ours = samples.get(OURS[0], [])
    for name, cell in cells.items():
        with suppress(SystemFailedError):
            of_name[name].ask("drop")
        if cell.reason is None and cell.seconds is not None:
            taken = samples.get(name) or [{"seconds": cell.seconds}] * len(ours)
            cell.rounds = len(samples.get(name, [None]))
            cell.ratio = paired(taken, ours, "seconds")
            cell.readings = [float(f"{one['seconds']:.4g}") for one in taken]
    return list(cells.values())


def timed(
    cells: Mapping[str, Any],
    size: int,
    seen: dict[str, list[Point]],
    limits: Limits,
    warm: Callable[[str], Sample],
    sample: Callable[[str], Sample],
) -> dict[str, list[Sample]]:
    """Time systems in rounds, each in another order; return their samples.

    A cell gets its median ``seconds``, or the ``reason`` why it has none. One whose
    first call takes too long has that as its time, and no samples. A slow system takes
    part in the first rounds only. ``seen`` has the rows and seconds of smaller batches,
    and gets these.
    """
    rounds: dict[str, int] = {}
    for name, cell in cells.items():
        expected = expected_seconds(seen.get(name, []), size)
        if cell.reason is None and expected > limits.call:
            cell.reason = f"about {expected:.2g} s a call"
        if cell.reason is not None:
            continue
        try:
            warmed = warm(name)
        except SystemFailedError as error:
            cell.reason = str(error)
            continue
        if warmed["first"] > limits.call:
            cell.seconds = warmed["first"]
        else:
            fits = int(limits.cell / max(warmed["slot"], 1e-9))
            rounds[name] = max(3, min(limits.rounds, fits))
    samples: dict[str, list[Sample]] = {name: [] for name in rounds}
    names = list(rounds)
    for number in range(max(rounds.values(), default=0)):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            if number < rounds[name] and cells[name].reason is None:
                try:
                    samples[name].append(sample(name))
                except SystemFailedError as error:
                    cells[name].reason = str(error)
    for name, cell in cells.items():
        if cell.reason is None:
            if taken := samples.get(name):
                cell.seconds = median(s["seconds"] for s in taken)
            seen.setdefault(name, []).append((size, cell.seconds))
    return samples


def paired(theirs: Sequence[Sample], ours: Sequence[Sample], key: str) -> float | None:
    return ratio([s[key] for s in theirs], [s[key] for s in ours])


def expected_seconds(seen: Sequence[Point], size: int) -> float:
    """Return what a call should take by the last two smaller batches; 0: unknown.

    >>> expected_seconds([(1, 1.0), (8, 1.7)], 64)
    7.3
    """
    if len(seen) < 2:
        return 0.0
    (few, fast), (more, slow) = seen[-2:]
    return slow + max(0.0, slow - fast) / (more - few) * (size - more)
