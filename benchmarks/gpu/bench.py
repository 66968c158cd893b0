"""One model on all systems of a GPU: answers compared, then interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import measure
import numpy as np
from environments import python_of
from measure import agreement, paired, timed
from models import Model
from remote import Entry, Remote, SystemFailedError

from benchmarks.gpu.designs import designs
from skforge import compile_forest, load_forest
from skforge.forest.reference import reference_raw

OURS = "skforge"
WHERE = ("device", "host")
COMPARED_ROWS = 512


@dataclass(frozen=True, slots=True)
class Participant:
    """A system of the tables, and the process it lives in."""

    name: str
    process: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class Limits(measure.Limits):
    """How much time is taken; ``end`` is of ``monotonic``: no cell is begun later."""

    rounds: int = 7
    slot: float = 0.02
    prepare: float = 120.0
    memory: float = 4e9  # of a batch's rows
    end: float = float("inf")


@dataclass(slots=True)
class Cell:
    """One system at one batch size, with rows on the device or the host."""

    system: str
    rows: int
    where: str
    seconds: float | None = None
    kernel: float | None = None
    ratio: float | None = None  # of its time to skforge's, median within rounds
    kernel_ratio: float | None = None
    reason: str | None = None


class GpuRemote(Remote):
    worker = Path(__file__).with_name("worker.py")


def participants(
    target: str,
    model: Model,
    wanted: Sequence[str] | None,
    reductions: Sequence[str],
    threads: int,
    peers: Sequence[str] | None,
) -> list[Participant]:
    """Return who predicts a model: skforge's defaults, its designs, and peers.

    Of the designs ``wanted`` and of the peers, None stands for all. Default schedules
    have the ``reductions`` besides "exact"; ``threads`` are those on the CPU.
    """
    ours = {"target": target, "clock": target}
    found = [Participant(OURS, OURS, "skforge", ours)]
    for one in reductions:
        options = {**ours, "reduction": one}
        found.append(Participant(f"skforge {one}", OURS, "skforge", options))
    for design in designs(load_forest(model.source)):
        if wanted is None or design.name in wanted:
            options = {**ours, "design": design.name}
            found.append(Participant(design.name, OURS, "skforge", options))
    on_cpu = {"target": "cpu", "clock": "emulated", "threads": threads}
    found.append(Participant("skforge on the CPU", "cpu", "skforge", on_cpu))
    for name, process, environment in PEERS:
        if peers is None or name in peers:
            function = name.replace(" ", "_")
            clock = {"clock": target}
            found.append(Participant(name, process, function, clock, environment))
    return found


#: Name (its loader's too), process, environment of benchmarks/environments.
PEERS = (
    ("nvforest", "nvforest", None),
    ("cuml", "cuml", None),
    ("xgboost", "xgboost", None),
    ("xgboost matrix", "xgboost", None),
    ("hummingbird", "hummingbird", "hummingbird-gpu"),
    ("hummingbird eager", "hummingbird", "hummingbird-gpu"),
)


class Group:
    """The processes of a run, started when first needed."""

    def __init__(self) -> None:
        self._remotes: dict[str, GpuRemote] = {}

    def of(self, who: Participant) -> GpuRemote:
        found = self._remotes.get(who.process)
        if found is None:
            # Where no environment was made, this one may have the library.
            made = who.environment is not None and python_of(who.environment)
            entry = Entry(who.process, "", "", who.environment if made else None)
            found = self._remotes[who.process] = GpuRemote(entry)
        return found

    def forget_models(self) -> None:
        """Free what processes hold of a model."""
        for remote in self._remotes.values():
            with suppress(SystemFailedError):
                remote.ask("unload")

    def close(self) -> None:
        for remote in self._remotes.values():
            remote.close()


def bench(
    model: Model,
    group: Group,
    who: Sequence[Participant],
    batches: Sequence[int],
    limits: Limits,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Return everything measured of one model, as JSON has it."""
    truth = _truth(model)
    systems: list[dict[str, Any]] = []
    ready: list[tuple[Participant, tuple[str, ...]]] = []
    for one in who:
        known = _prepare(model, group, one, truth, limits)
        systems.append(known)
        say(f"  {one.name}: {known['reason'] or known['agreement']}")
        if known["reason"] is None:
            ready.append((one, tuple(w for w in WHERE if known.pop(w))))
    cells: list[Cell] = []
    itemsize = np.dtype(model.facts["dtype"]).itemsize
    for where in WHERE:
        here = [one for one, places in ready if where in places]
        seen: dict[str, list[tuple[int, float]]] = {}
        for rows in batches:
            if monotonic() > limits.end:
                say(f"  out of time: no more than {len(cells)} cells")
                break
            size = rows * model.facts["features"] * itemsize
            if size > limits.memory:
                why = f"its rows take {size / 1e9:.1f} GB"
                cells += [Cell(one.name, rows, where, reason=why) for one in here]
                continue
            made = _cells(group, here, rows, where, seen, limits)
            cells += made
            best = sorted((c for c in made if c.seconds), key=lambda c: c.seconds or 0)
            shown = ", ".join(f"{c.system} {1e6 * (c.seconds or 0):.4g}" for c in best)
            say(f"  {rows:,} rows on the {where}, µs: {shown}")
    group.forget_models()
    return {
        "model": model.name,
        "kind": model.kind,
        "facts": model.facts,
        "rows_from": model.rows_from,
        "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": next((s["facts"] for s in systems if s.get("facts")), {}),
        "systems": [{k: v for k, v in s.items() if k != "facts"} for s in systems],
        "cells": [asdict(cell) for cell in cells],
    }


def _truth(model: Model) -> dict[str, Any]:
    """Return exact answers: raw scores, and what the source's predict returns."""
    forest = load_forest(model.source)
    rows = np.resize(np.load(model.rows), (COMPARED_ROWS, forest.n_features))
    truth: dict[str, Any] = {"raw": reference_raw(forest, rows)}
    truth["value"] = np.asarray(compile_forest(forest, None, "cpu").predict(rows))
    return truth


def _prepare(
    model: Model, group: Group, who: Participant, truth: dict[str, Any], limits: Limits
) -> dict[str, Any]:
    known: dict[str, Any] = {"system": who.name, "reason": None}
    remote = group.of(who)
    try:
        given = {"key": who.name, "function": who.function, "options": who.options}
        loaded = remote.ask("load", limits.prepare, model=asdict(model), **given)
        found = remote.array("answers", key=who.name, rows=COMPARED_ROWS)
    except SystemFailedError as error:
        return {**known, "reason": str(error)}
    exact = truth[loaded["answer"]]
    difference, same, differs = agreement(found, exact)
    return {
        **known,
        "prepare_seconds": loaded["seconds"],
        "max_abs_diff": difference,
        "same_bits": same,
        "differs": differs,
        "agreement": "same bits" if same else f"max |diff| {difference:.1e}",
        "device": loaded["device"],
        "host": loaded["host"],
        "facts": loaded["facts"] if who.name == OURS else None,
    }


def _cells(
    group: Group,
    who: Sequence[Participant],
    rows: int,
    where: str,
    seen: dict[str, list[tuple[int, float]]],
    limits: Limits,
) -> list[Cell]:
    cells = {one.name: Cell(one.name, rows, where) for one in who}
    remotes = {one.name: group.of(one) for one in who}
    samples = timed(
        cells,
        rows,
        seen,
        limits,
        lambda name: remotes[name].ask(
            "warm", key=name, rows=rows, where=where, slot=limits.slot
        ),
        lambda name: remotes[name].ask("sample", key=name, kernels=where == "device"),
    )
    ours = samples.get(OURS, [])
    for name, taken in samples.items():
        cell = cells[name]
        if cell.reason is None and taken:
            cell.ratio = paired(taken, ours, "seconds")
            if "kernel" in taken[0]:
                cell.kernel = median(s["kernel"] for s in taken)
                cell.kernel_ratio = paired(taken, ours, "kernel")
    for process in {one.process: one for one in who}.values():
        with suppress(SystemFailedError):
            group.of(process).ask("drop")
    return list(cells.values())
