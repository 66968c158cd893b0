"""What a GPU's first run found.

Tables beside other libraries are those of ``tables.py``, in ``gpu.md``, and beside
strategies of other systems those of ``random_models.py``, in ``gpu_random_cuda.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from harness import table

from benchmarks.gpu import random_models
from benchmarks.gpu.first_run_items import Log, failed
from benchmarks.gpu.first_run_setup import Setup
from benchmarks.gpu.first_run_stages import METRICS, RANDOM, STAGES
from benchmarks.gpu.plots import write as write_bench


def write(log_: Log, setup: Setup, folder: Path) -> None:
    known = {stage.number: log_.results(stage.number) for stage in STAGES}
    device = known[1].get("device", {}).get("result", {})
    parts = [
        "# A GPU's first run\n",
        ", ".join(f"{key} {value}" for key, value in device.items()) + ".\n",
        *_overview(known),
        *_searches(known[5]),
        *_designs(known[6]),
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


def _designs(lines: dict[str, Any]) -> Iterator[str]:
    for name, line in lines.items():
        times = _result(line).get("seconds", {})
        sizes = list(dict.fromkeys(n for seconds in times.values() for n in seconds))
        rows = [
            [design, *(f"{1e6 * seconds[n]:.1f}" for n in sizes)]
            for design, seconds in times.items()
        ]
        if rows:
            yield f"## Designs: µs of {name}\n"
            yield from _table(["design", *(f"{int(n):,} rows" for n in sizes)], rows)


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
