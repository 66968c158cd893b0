"""What a GPU's first run found, and the model of ``cost.py`` fitted to it.

Tables beside other libraries are those of ``tables.py``, in ``gpu.md``, and beside
strategies of other systems those of ``random_models.py``, in ``gpu_random_cuda.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np
from harness import table

from benchmarks.gpu import random_models
from benchmarks.gpu.chips import A100, H200, Chip
from benchmarks.gpu.cost import Built, Modeller
from benchmarks.gpu.cost_records import FIRST_LAUNCH
from benchmarks.gpu.designs import designs
from benchmarks.gpu.first_run_items import Log, failed
from benchmarks.gpu.first_run_setup import Setup
from benchmarks.gpu.first_run_stages import METRICS, RANDOM, STAGES
from benchmarks.gpu.plots import write as write_bench
from skforge.exceptions import SkforgeError

#: What is fitted of a chip, and by what each is multiplied in turn.
FITTED = ("issue", "l2_bytes_per_cycle", "far", "near", "shared")
STEPS, TURNS = (0.7, 0.85, 0.95, 1.05, 1.2, 1.4), 12


def write(log_: Log, setup: Setup, folder: Path) -> None:
    """Write first_run.md, and gpu.md with its figures if anything was compared."""
    known = {stage.number: log_.results(stage.number) for stage in STAGES}
    device = known[1].get("device", {}).get("result", {})
    parts = [
        "# A GPU's first run\n",
        ", ".join(f"{key} {value}" for key, value in device.items()) + ".\n",
        *_overview(known),
        *_searches(known[5]),
        *_modelled(known[6], setup, str(device.get("arch", ""))),
        *_contributions(known[7]),
        *_counters(known[8]),
    ]
    text = "\n".join(parts)
    (folder / "first_run.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    try:
        _tables(known, setup, folder)
    except ModuleNotFoundError as error:
        print(f"Without figures: {error}")


def _tables(known: dict[int, dict[str, Any]], setup: Setup, folder: Path) -> None:
    """Write the tables and figures of other modules."""
    facts = known[1].get("versions", {}).get("result", {})
    benches = [x["bench"] for x in map(_result, known[3].values()) if "bench" in x]
    if benches:
        write_bench(benches, facts, folder)
    records = [x for x in map(_result, known[4].values()) if "times" in x]
    random = [one for one in records if one["model"] in RANDOM]
    real = [one for one in records if one["model"] not in RANDOM]
    if random and real:
        random_models.write(random, real, setup.target, folder)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [*table(heads, rows), ""]


def _overview(known: dict[int, dict[str, Any]]) -> Iterator[str]:
    rows, bad = [], []
    for stage in STAGES:
        lines = known[stage.number]
        wrong = {name: one for name, one in lines.items() if failed(one)}
        seconds = sum(one["seconds"] for one in lines.values())
        compared = sum(_result(one).get("schedules", 0) for one in lines.values())
        refused = sum(len(_result(one).get("refused", ())) for one in lines.values())
        counts = len(lines), len(wrong), compared, refused, f"{seconds:.0f}"
        rows.append([f"{stage.number} {stage.title}", *counts])
        for name, one in wrong.items():
            why = one.get("error") or "; ".join(map(str, _result(one)["wrong"]))
            bad.append(f"- stage {stage.number}, {name}: {why[:300]}")
    head = ["stage", "items", "failed", "schedules compared", "refused", "seconds"]
    yield from _table(head, rows)
    if bad:
        yield from ("## Failed\n", *bad, "")


def _result(line: dict[str, Any]) -> dict[str, Any]:
    return line.get("result") or {}


def _searches(lines: dict[str, Any]) -> Iterator[str]:
    """Yield searches by how far they are from the best of Table 5."""
    best: dict[tuple[str, str], float] = {}
    for item, line in lines.items():
        kind, name, _ = item.split(", ")
        if kind == "Table 5":
            for times in _result(line).get("seconds", {}).values():
                for n, seconds in times.items():
                    best[name, n] = min(best.get((name, n), inf), seconds)
    rows = []
    for item, line in lines.items():
        kind, name, words = item.split(", ")
        if kind == "Table 5" or "seconds" not in _result(line):
            continue
        found = line["result"]
        ((n, seconds),) = found["seconds"].items()
        least = best.get((name, str(n)), inf)
        times = f"{1e6 * seconds:.1f}", f"{1e6 * least:.1f}", f"{seconds / least:.2f}"
        rows.append([name, words, kind, *times, f"{found['taken']:.1f}"])
    if rows:
        yield "## Searches\n"
        head = ["model", "batch", "strategy", "µs", "best of Table 5, µs", "slowdown"]
        yield from _table([*head, "search, s"], sorted(rows))


# ------------------------------------------------------------ the model


@dataclass(frozen=True, slots=True)
class Sample:
    """A design's walk, and its measured seconds by batch size."""

    model: str
    modeller: Modeller
    built: Built
    sizes: dict[int, tuple[int, int]]
    schedule: Any
    seconds: dict[int, float]

    def ratios(self, chip: Chip, launch: float) -> list[float]:
        """Return measured times by those that a chip would have."""
        modeller = replace(self.modeller, chip=chip)
        cost = modeller.cost_of_walk(self.built, self.sizes, self.schedule)
        # Events leave out what comes before the first launch.
        return [
            seconds / (cost.seconds[n] - FIRST_LAUNCH + launch)
            for n, seconds in self.seconds.items()
        ]


def samples(lines: dict[str, Any], setup: Setup, chip: Chip) -> Iterator[Sample]:
    """Yield the designs that were measured and can be modelled."""
    for name, line in lines.items():
        forest, rows = setup.forest(name)
        modeller = Modeller(forest, rows, "exact", chip)
        for design in designs(forest):
            times = _result(line).get("seconds", {}).get(design.name)
            if times is None:
                continue
            try:
                made = modeller.made(design.schedule)
                if made.is_bits:
                    continue
                built = modeller.build(made)
            except SkforgeError:
                continue
            seconds = {int(n): one for n, one in times.items()}
            sizes = built.sizes(made, seconds)
            yield Sample(name, modeller, built, sizes, design.schedule, seconds)


def refitted(found: Sequence[Sample], chip: Chip) -> tuple[Chip, float]:
    """Return the chip, and seconds of a launch, that explain the times best.

    One number after the other is multiplied as long as the mean absolute logarithm of
    measured by modelled times falls.
    """
    launch, best = FIRST_LAUNCH, spread(found, chip, FIRST_LAUNCH)
    for _ in range(TURNS):
        before = best
        for name in (*FITTED, "launch"):
            tried = []
            for step in STEPS:
                if name == "launch":
                    one = chip, launch * step
                else:
                    one = replace(chip, **{name: getattr(chip, name) * step}), launch
                tried.append((spread(found, *one), one))
            least, one = min(tried, key=lambda pair: pair[0])
            if least < best:
                best, (chip, launch) = least, one
        if before - best < 1e-3:
            break
    return chip, launch


def spread(found: Sequence[Sample], chip: Chip, launch: float) -> float:
    """Return the mean absolute logarithm of measured by modelled times."""
    ratios = [r for one in found for r in one.ratios(chip, launch)]
    return sum(abs(log(r)) for r in ratios) / len(ratios)


def _modelled(lines: dict[str, Any], setup: Setup, arch: str) -> Iterator[str]:
    given = A100 if arch == A100.arch else H200
    found = list(samples(lines, setup, given))
    if not found:
        return
    chip, launch = refitted(found, given)
    rows = []
    for name in dict.fromkeys(one.model for one in found):
        mine = [one for one in found if one.model == name]
        row = [name, len(mine)]
        for which in ((given, FIRST_LAUNCH), (chip, launch)):
            ratios = [one.ratios(*which) for one in mine]
            flat = [log(r) for row_ in ratios for r in row_]
            mean, off = exp(np.mean(flat)), exp(np.mean(np.abs(flat)))
            row += [f"{mean:.2f}", f"{off:.2f}"]
        rows.append(row)
    yield "## Measured by modelled times of designs that walk\n"
    head = ["model", "designs", "geomean", "mean factor off"]
    yield from _table([*head, "geomean, refitted", "factor off, refitted"], rows)
    parts = [f"{key}={getattr(chip, key):.3g}" for key in FITTED]
    yield f"Refitted: {', '.join(parts)}, {1e6 * launch:.2f} µs a launch.\n"


# ------------------------------------------------------------ the rest


def _contributions(lines: dict[str, Any]) -> Iterator[str]:
    rows = [
        [name, f"{int(n):,}", f"{1e3 * gpu:.2f}", f"{1e3 * cpu:.2f}"]
        for name, line in lines.items()
        for n, gpu in _result(line).get("gpu", {}).items()
        if (cpu := line["result"]["cpu"].get(n))
    ]
    if rows:
        yield "## Contributions\n"
        yield from _table(["model", "rows", "GPU, ms", "CPU, ms"], rows)


def _counters(lines: dict[str, Any]) -> Iterator[str]:
    rows = [
        [item, *(kernel.get(one, "") for one in METRICS)]
        for item, line in lines.items()
        for kernel in _result(line).get("kernels", ())[-1:]
    ]
    if rows:
        yield "## Counters\n"
        names = [one.partition(".")[0].replace("__", " ") for one in METRICS]
        yield from _table(["model:design:rows", *names], rows)
