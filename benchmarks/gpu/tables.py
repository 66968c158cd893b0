"""What was measured, as tables: SilvanForge's Figures 6 to 9, crossover, ablation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from harness import table

from benchmarks.gpu.bench import OURS
from benchmarks.gpu.designs import ABLATION

Results = Sequence[dict[str, Any]]
ON_CPU = "skforge on the CPU"

#: Peers of the figures: the first of these that was measured.
FOREST_PEERS = ("nvforest", "cuml")
TORCH_PEERS = ("hummingbird", "hummingbird eager")
#: Batches of the bars of Figures 6 and 7, and of the random models.
BARS, RANDOM = (512, 8192), (512, 4096)

FIGURES = (
    ("Figure 6: kernel time, times that of nvForest", FOREST_PEERS, "kernel_ratio"),
    ("Figure 6: total time with copies, × nvForest", FOREST_PEERS, "ratio"),
    ("Figure 7: total time with copies, × Hummingbird", TORCH_PEERS, "ratio"),
    ("XGBoost on the GPU: kernel time", ("xgboost",), "kernel_ratio"),
    ("XGBoost on the GPU: total time with copies", ("xgboost",), "ratio"),
)


def cells_of(result: dict[str, Any], system: str, where: str) -> dict[int, Any]:
    """Return one system's cells that have a time, by rows."""
    return {
        cell["rows"]: cell
        for cell in result["cells"]
        if (cell["system"], cell["where"]) == (system, where) and cell["seconds"]
    }


def measured_peer(result: dict[str, Any], names: Iterable[str]) -> str | None:
    return next((n for n in names if any(cells_of(result, n, "device"))), None)


def where_of(key: str) -> str:
    """Return which rows a ratio is of: kernels have theirs on the device."""
    return "device" if key == "kernel_ratio" else "host"


def speedups(
    results: Results, peers: Sequence[str], key: str
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for result in results:
        peer = measured_peer(result, peers)
        if peer is not None:
            cells = cells_of(result, peer, where_of(key))
            found[result["model"]] = {n: c[key] for n, c in cells.items() if c[key]}
    return found


def to_markdown(results: Results, facts: dict[str, Any]) -> str:
    device = next((r["device"] for r in results if r["device"]), {})
    words = ", ".join(f"{name} {value}" for name, value in device.items())
    parts = [
        "# GPU\n",
        f"{words or 'no GPU'}; host: {facts['target']}; {facts['measured']}.\n",
        "Times are medians of interleaved rounds. *device*: rows on the device, a call "
        "and waiting for its answer; *kernel*: by events, calls queued behind a kernel "
        "that keeps the GPU busy; *host*: NumPy rows to a NumPy answer. Ratios: a "
        "system's time by that of skforge's defaults in exact mode.\n",
    ]
    trained = [r for r in results if not r["model"].startswith("synthetic-")]
    for title, peers, key in FIGURES:
        parts += _figure(title, speedups(trained or results, peers, key))
    parts += _random(results)
    parts += [_crossovers(results), _ablations(results)]
    parts += [_model(result) for result in results]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([*table(head, rows), ""])


def _figure(title: str, found: dict[str, dict[int, float]]) -> list[str]:
    sizes = sorted({n for one in found.values() for n in one})
    if not sizes:
        return []
    rows = [[name, *(_times(one.get(n)) for n in sizes)] for name, one in found.items()]
    means = ["**geomean**"]
    for n in sizes:
        values = [one[n] for one in found.values() if n in one]
        means.append(f"**{geometric_mean(values):.2f}**" if values else "–")
    head = ["model", *(f"{n:,} rows" for n in sizes)]
    return [f"## {title}\n", _table(head, [*rows, means])]


def random_grid(results: Results, peers: Sequence[str], key: str, rows: int) -> Any:
    grid: dict[tuple[int, int], list[float]] = {}
    family = [r for r in results if r["model"].startswith("synthetic-")]
    for name, one in speedups(family, peers, key).items():
        if rows in one:
            trees, features = map(int, name.split("-")[1].split("x"))
            grid.setdefault((trees, features), []).append(one[rows])
    return {place: geometric_mean(values) for place, values in grid.items()}


def _random(results: Results) -> list[str]:
    found = []
    for title, peers, key in (
        ("Figure 8: random models, kernel, × nvForest", FOREST_PEERS, "kernel_ratio"),
        ("Figure 9: random models, total, × Hummingbird", TORCH_PEERS, "ratio"),
    ):
        for rows in RANDOM:
            grid = random_grid(results, peers, key, rows)
            if not grid:
                continue
            columns = sorted({f for _, f in grid})
            lines = [
                [f"{t:,} trees", *(_times(grid.get((t, f))) for f in columns)]
                for t in sorted({t for t, _ in grid})
            ]
            head = [f"{rows:,} rows", *(f"{f:,} features" for f in columns)]
            found += [f"## {title}, {rows:,} rows\n", _table(head, lines)]
    return found


def crossover(result: dict[str, Any]) -> int | None:
    """Return the rows from which the GPU is faster for NumPy rows, up to the end."""
    gpu, cpu = (cells_of(result, name, "host") for name in (OURS, ON_CPU))
    best = None
    for n in sorted(gpu.keys() & cpu.keys(), reverse=True):
        if gpu[n]["seconds"] >= cpu[n]["seconds"]:
            break
        best = n
    return best


def _crossovers(results: Results) -> str:
    rows = []
    for result in results:
        gpu, cpu = (cells_of(result, name, "host") for name in (OURS, ON_CPU))
        known = sorted(gpu.keys() & cpu.keys())
        at = crossover(result)
        pairs = ", ".join(
            f"{n:,}: {1e6 * gpu[n]['seconds']:.3g} / {1e6 * cpu[n]['seconds']:.3g}"
            for n in known
        )
        rows.append([result["model"], f"{at:,}" if at else "never", pairs])
    head = ["model", "GPU from rows", "rows: µs GPU / CPU, NumPy rows"]
    return "## Crossover with the CPU\n\n" + _table(head, rows)


def _ablations(results: Results) -> str:
    rows = []
    for result in results:
        for what, without, with_ in ABLATION:
            before = cells_of(result, without, "device")
            after = cells_of(result, with_, "device")
            gains = [
                f"{n:,}: {before[n]['kernel'] / after[n]['kernel']:.2f}"
                for n in sorted(before.keys() & after.keys())
                if before[n]["kernel"] and after[n]["kernel"]
            ]
            if gains:
                rows.append([result["model"], what, ", ".join(gains)])
    head = ["model", "what is added", "rows: times faster, kernel"]
    return "## Ablation\n\n" + _table(head, rows)


def _model(result: dict[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in result["facts"].items())
    parts = [f"## {result['model']}\n", f"{facts}; rows: {result['rows_from']}.\n"]
    for where in ("device", "host"):
        sizes = sorted({c["rows"] for c in result["cells"] if c["where"] == where})
        if not sizes:
            continue
        what = "µs a call, kernel / total" if where == "device" else "µs a call"
        head = [f"rows on the {where}: {what}", *(f"{n:,}" for n in sizes), "answers"]
        lines = []
        for system in result["systems"]:
            cells = {
                c["rows"]: c
                for c in result["cells"]
                if (c["where"], c["system"]) == (where, system["system"])
            }
            if cells:
                texts = [_cell(cells.get(n)) for n in sizes]
                lines.append([system["system"], *texts, _answers(system)])
        parts.append(_table(head, lines))
    absent = [s for s in result["systems"] if s["reason"]]
    missing = [f"{s['system']}: {s['reason']}" for s in absent]
    if missing:
        parts.append("Not measured – " + "; ".join(missing) + ".\n")
    return "\n".join(parts)


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    if cell["seconds"] is None:
        return cell["reason"] or "–"
    text = f"{1e6 * cell['seconds']:.4g}"
    if cell["kernel"]:
        text = f"{1e6 * cell['kernel']:.4g} / {text}"
    ratio = cell["kernel_ratio"] or cell["ratio"]
    return text if cell["system"] == OURS or not ratio else f"{text} **{ratio:.2f}×**"


def _answers(system: dict[str, Any]) -> str:
    if system["same_bits"]:
        return "same bits"
    return f"{system['max_abs_diff']:.1e}{' †' if system['differs'] else ''}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
