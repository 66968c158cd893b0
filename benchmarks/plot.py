"""Pictures: what all are drawn with, a heat map of ratios, and calls' latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import Result
from report import at, best_peer

#: The same file for the same numbers, with text that a browser can set.
SVG = {"svg.hashsalt": "skforge", "svg.fonttype": "none", "font.family": "sans-serif"}
#: The calls that are drawn: ours, those of the models' libraries, other systems.
CALLS = (
    "CompiledForest.predict",
    "XGBClassifier.predict",
    "lightgbm Booster.predict",
    "sklearn predict",
    "onnxruntime",
    "tl2cgen",
    "treelite",
    "C: skforge.export",
)
#: Models whose latencies are drawn.
DRAWN = ("airline.json", "LGBMClassifier-8", "RandomForestClassifier-8")
CONDITIONS = {"hot": "tab:blue", "evicted": "tab:orange"}


def canvas(size: tuple[float, float], *grid: int, **options: Any) -> tuple[Any, Any]:
    """Return a figure of some inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(size, layout="constrained")
    return figure, figure.subplots(*grid, **options)


def heat(
    axes: Any,
    values: Any,
    columns: Sequence[str],
    rows: Sequence[str],
    text: Callable[[float], str],
    shade: Callable[[float], str],
    size: float = 7,
    **look: Any,
) -> Any:
    import numpy as np

    values = np.asarray(values, float)
    image = axes.imshow(values, aspect="auto", **look)
    for (i, j), value in np.ndenumerate(values):
        words = {"color": shade(value), "fontsize": size}
        axes.text(j, i, text(value), ha="center", va="center", **words)
    axes.set_yticks(range(len(rows)), rows, fontsize=size)
    axes.set_xticks(range(len(columns)), columns, fontsize=size)
    return image


def tilt(axes: Any, labels: Sequence[str], angle: float = 30, size: float = 7) -> None:
    """Write long labels below an axis."""
    axes.set_xticks(
        range(len(labels)), labels, rotation=angle, ha="right", fontsize=size
    )


def bars(
    axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[float]]
) -> None:
    width = 0.8 / max(1, len(series))
    for place, (name, values) in enumerate(series.items()):
        shift = (place - (len(series) - 1) / 2) * width
        axes.bar([i + shift for i in range(len(groups))], values, width, label=name)
    tilt(axes, groups)


def heat_map(results: Sequence[Result], file: Path) -> None:
    """Draw the time of the best peer by ours on one thread, by model and batch size."""
    import numpy as np
    from matplotlib.colors import LogNorm

    sizes = sorted({c.rows for r in results for c in r.cells})
    table = np.full((len(results), len(sizes)), np.nan)
    for i, result in enumerate(results):
        for j, size in enumerate(sizes):
            best = best_peer(at(result, 1, size))
            if best is not None and best.ratio is not None:
                table[i, j] = best.ratio
    figure, axes = canvas((5.4, 0.8 + 0.2 * len(results)))
    heat(
        axes,
        table,
        [f"{n:,}" for n in sizes],
        [r.model for r in results],
        lambda x: "–" if np.isnan(x) else f"{x:.2g}" if x < 10 else f"{x:.0f}",
        lambda x: "white" if x > 12 else "crimson" if x < 1 else "black",
        8,
        cmap="YlGnBu",
        norm=LogNorm(1, 60),
    )
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    title = "Times faster than the fastest other system, by rows in a call (1 thread)"
    figure.suptitle(title, fontsize=9)
    save(figure, file)


def latencies(runs: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the median to the 99.9th percentile of calls of one row, by system."""
    from matplotlib.ticker import EngFormatter

    lines = [x for run in runs for x in run["lines"] if x["rows"] == 1]
    models = dict.fromkeys(x["model"] for x in lines if x["model"] in DRAWN)
    by_model = {
        m: [c for c in CALLS if any((x["model"], x["system"]) == (m, c) for x in lines)]
        for m in models
    }
    if not models:
        return
    heights = [len(calls) + 0.6 for calls in by_model.values()]
    size = (5.4, 0.8 + 0.24 * sum(heights))
    shared = {"sharex": True, "squeeze": False, "height_ratios": heights}
    figure, grid = canvas(size, len(models), **shared)
    panels = grid[:, 0]
    for axes, (model, calls) in zip(panels, by_model.items(), strict=True):
        for x in (x for x in lines if x["model"] == model and x["system"] in calls):
            if x["condition"] not in CONDITIONS:
                continue
            color = CONDITIONS[x["condition"]]
            y = calls.index(x["system"]) + (
                0.17 if x["condition"] == "evicted" else -0.17
            )
            ticks = [x["p99"], x["p999"]] if x["calls"] >= 1000 else [x["p99"]]
            axes.plot([x["p50"], ticks[-1]], [y, y], color=color, linewidth=2)
            axes.plot([x["p50"]], [y], "o", color=color, markersize=5)
            axes.plot(ticks, [y] * len(ticks), "|", color=color, markersize=6)
        axes.set_yticks(range(len(calls)), calls, fontsize=8)
        axes.set_ylim(len(calls) - 0.5, -0.5)
        axes.set_title(model, fontsize=9, loc="left")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xscale("log")
    panels[-1].xaxis.set_major_formatter(EngFormatter("s"))
    panels[-1].tick_params(axis="x", labelsize=8)
    names = {"hot": "the same call over and over", "evicted": "with evicted caches"}
    for name, color in CONDITIONS.items():
        panels[-1].plot([], [], color=color, linewidth=2, label=names[name])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    title = "Time of a call of one row: median (dot), 99th and 99.9th percentile"
    figure.suptitle(title, fontsize=9)
    save(figure, file)


def save(figure: Any, file: Path, **options: Any) -> None:
    """Write a figure; the same file for the same numbers."""
    import matplotlib as mpl

    with mpl.rc_context(SVG):
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, metadata=metadata, **options)
