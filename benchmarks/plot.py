"""Pictures of results that are stored: a heat map of ratios, and calls' latencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import Result
from report import at, best_peer

from skforge.exceptions import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
)
CONDITIONS = {"hot": "tab:blue", "busy": "tab:orange"}


def heat_map(results: Sequence[Result], file: Path, threads: int = 1) -> None:
    """Draw the time of the best peer by ours, for each model and batch size."""
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    sizes = sorted({c.rows for r in results for c in r.cells})
    table = np.full((len(results), len(sizes)), np.nan)
    for i, result in enumerate(results):
        for j, size in enumerate(sizes):
            best = best_peer(at(result, threads, size))
            if best is not None and best.ratio is not None:
                table[i, j] = best.ratio
    figure = Figure((5.4, 0.8 + 0.2 * len(results)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(table, cmap="YlGnBu", norm=LogNorm(1, 60), aspect="auto")
    for (i, j), ratio in np.ndenumerate(table):
        text = (
            "–" if np.isnan(ratio) else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
        )
        shade = "white" if ratio > 12 else "crimson" if ratio < 1 else "black"
        axes.text(j, i, text, ha="center", va="center", color=shade, fontsize=8)
    axes.set_yticks(range(len(results)), [r.model for r in results], fontsize=8)
    axes.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes], fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    on = plural(threads, "thread")
    title = f"Times faster than the fastest other system, by rows in a call ({on})"
    figure.suptitle(title, fontsize=9)
    _save(figure, file)


def latencies(runs: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the median to the 99.9th percentile of calls of one row, by system."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = [x for run in runs for x in run["lines"] if x["rows"] == 1]
    models = dict.fromkeys(x["model"] for x in lines if x["condition"] == "busy")
    by_model = {
        m: [c for c in CALLS if any((x["model"], x["system"]) == (m, c) for x in lines)]
        for m in models
    }
    if not models:
        return
    heights = [len(calls) + 0.6 for calls in by_model.values()]
    figure = Figure((5.4, 0.8 + 0.24 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(models), sharex=True, height_ratios=heights)
    for axes, (model, calls) in zip(panels, by_model.items(), strict=True):
        for x in (x for x in lines if x["model"] == model and x["system"] in calls):
            if x["condition"] not in CONDITIONS:
                continue
            color = CONDITIONS[x["condition"]]
            y = calls.index(x["system"]) + (0.17 if x["condition"] == "busy" else -0.17)
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
    names = {"hot": "the same call over and over", "busy": "beside a busy thread"}
    for name, color in CONDITIONS.items():
        panels[-1].plot([], [], color=color, linewidth=2, label=names[name])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    title = "Time of a call of one row: median (dot), 99th and 99.9th percentile"
    figure.suptitle(title, fontsize=9)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context(SVG):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
