"""Figures 6 to 9 of SilvanForge's evaluation, drawn from what was measured."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness import publish, rounded
from plot import bars, canvas, heat, save

from benchmarks.gpu.tables import (
    BARS,
    FOREST_PEERS,
    RANDOM,
    TORCH_PEERS,
    Results,
    random_grid,
    speedups,
    to_markdown,
)


def plot(results: Results, folder: Path) -> None:
    """Draw the figures that there is something to draw of."""
    trained = [r for r in results if not r["model"].startswith("synthetic-")]
    kernel, total = (FOREST_PEERS, "kernel_ratio"), (FOREST_PEERS, "ratio")
    both, of_torch = {"kernel": kernel, "total": total}, (TORCH_PEERS, "ratio")
    for number, lines, peer in (
        (6, both, "nvForest"),
        (7, {"total": of_torch}, "Hummingbird"),
    ):
        file = folder / f"gpu-figure-{number}.png"
        _lines_and_bars(trained or results, lines, peer, file)
    for number, of in ((8, kernel), (9, of_torch)):
        grids = {f"{n:,} rows": random_grid(results, *of, n) for n in RANDOM}
        if any(grids.values()):
            draw_grids(grids, folder / f"gpu-figure-{number}.png")


def _lines_and_bars(
    results: Results, lines: dict[str, Any], peer: str, file: Path
) -> None:
    found = {name: speedups(results, *of) for name, of in lines.items()}
    if not any(one for each in found.values() for one in each.values()):
        return
    measured = {n for each in found.values() for one in each.values() for n in one}
    shown = [n for n in BARS if n in measured]
    figure, axes = canvas((5 + 5 * len(shown), 4), 1, 1 + len(shown), squeeze=False)
    axes = axes[0]
    for name, each in found.items():
        sizes = sorted({n for one in each.values() for n in one})
        means = [
            geometric_mean([one[n] for one in each.values() if n in one]) for n in sizes
        ]
        axes[0].plot(sizes, means, marker="o", label=name)
    axes[0].set(xscale="log", xlabel="rows", ylabel=f"times faster than {peer}")
    axes[0].axhline(1, color="grey", linewidth=0.8)
    axes[0].legend()
    first = next(iter(found.values()))
    for axis, rows in zip(axes[1:], shown, strict=True):
        known = {name: one[rows] for name, one in first.items() if rows in one}
        bars(axis, list(known), {"": list(known.values())})
        axis.set_title(f"{rows:,} rows, {next(iter(found))} time")
    save(figure, file, dpi=120)


def draw_grids(grids: dict[str, dict[tuple[int, int], float]], file: Path) -> None:
    """Draw speedups by (trees, features), a heat map for each title."""
    import numpy as np

    columns = min(2, len(grids))
    lines = -(-len(grids) // columns)
    figure, axes = canvas((11, 4 * lines), lines, columns, squeeze=False)
    for axis, (title, grid) in zip(axes.flat, grids.items(), strict=True):
        if not grid:
            continue
        trees = sorted({t for t, _ in grid})
        features = sorted({f for _, f in grid})
        table = [[grid.get((t, f), np.nan) for f in features] for t in trees]
        names = list(map(str, features)), list(map(str, trees))
        heat(axis, table, *names, "{:.1f}".format, lambda _: "white", 10)
        axis.set(xlabel="features", ylabel="trees", title=title)
    save(figure, file, dpi=80)


def write(results: list[dict[str, Any]], facts: dict[str, Any], folder: Path) -> None:
    document = rounded({"machine": facts, "models": results})
    publish(folder, "gpu", document, page, "system", "model")
    plot(results, folder)


def page(document: dict[str, Any]) -> str:
    return to_markdown(document["models"], document["machine"])
