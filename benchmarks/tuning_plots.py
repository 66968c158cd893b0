"""Figures 2, 5, 11 and 12 of SilvanForge, from times of all schedules of a space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Table = dict[str, dict[str, float]]

#: What a schedule that another target or model refuses counts as, in matrices.
NONE = float("nan")


def figures(table: Table, rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the four figures."""
    import matplotlib

    matplotlib.use("Agg")
    parts = [key.split("|") for key in table]
    models = list(dict.fromkeys(p[0] for p in parts))
    batches = list(dict.fromkeys(int(p[2]) for p in parts))
    distribution(table, models, batches, folder / "tuning-distribution.png")
    sensitivity(table, models, batches, folder / "tuning-sensitivity.png")
    strategies(rows, models, folder / "tuning-strategies.png")
    hardware(table, models, batches, folder / "tuning-hardware.png")


def slowdowns(times: list[dict[str, float]]) -> np.ndarray:
    """Return what the best schedule of column ``j`` loses where row ``i`` is run."""
    best = [min(one, key=lambda s: one[s]) for one in times]
    made = np.full((len(times), len(times)), NONE)
    for i, one in enumerate(times):
        for j, schedule in enumerate(best):
            if schedule in one:
                made[i, j] = one[schedule] / one[best[i]]
    return made


def distribution(table: Table, models: list[str], batches: list[int], to: Path) -> None:
    """Figure 5: times of all schedules by the fastest, for each model."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    data = [
        np.concatenate(
            [
                np.array(list(table[f"{m}|host|{b}"].values()))
                / min(table[f"{m}|host|{b}"].values())
                for b in batches
            ]
        )
        for m in models
    ]
    axes.violinplot([np.log10(d) for d in data], showmedians=True)
    axes.set_xticks(
        range(1, len(models) + 1), models, rotation=30, ha="right", fontsize=7
    )
    ticks = [1, 2, 5, 10, 50, 100]
    axes.set_yticks(np.log10(ticks), ticks)
    axes.set_ylabel("time by the fastest schedule's")
    axes.set_title(f"All schedules, batches of {', '.join(map(str, batches))}")
    _save(figure, to)


def sensitivity(table: Table, models: list[str], batches: list[int], to: Path) -> None:
    """Figure 2: the best schedule of one batch size or model used for another."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    one = models[0]
    _matrix(
        axes[0],
        slowdowns([table[f"{one}|host|{b}"] for b in batches]),
        [str(b) for b in batches],
        f"{one}: batch sizes",
    )
    mean = np.exp(
        np.nanmean(
            [
                np.log(slowdowns([table[f"{m}|host|{b}"] for b in batches]))
                for m in models
            ],
            axis=0,
        )
    )
    _matrix(axes[1], mean, [str(b) for b in batches], "batch sizes, geomean of models")
    _matrix(
        axes[2],
        slowdowns([table[f"{m}|host|512"] for m in models]),
        [m[:14] for m in models],
        "models, 512 rows",
    )
    _save(figure, to)


def strategies(rows: list[dict[str, Any]], models: list[str], to: Path) -> None:
    """Figure 11: slowdown to the best, and time by that of exhaustive search."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    names = [n for n in dict.fromkeys(r["strategy"] for r in rows)]
    whole = {
        m: np.mean(
            [
                r["seconds"]
                for r in rows
                if (r["model"], r["strategy"]) == (m, "exhaustive")
            ]
        )
        for m in models
    }
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        part = [
            [r for r in rows if (r["model"], r["strategy"]) == (m, name)]
            for m in models
        ]
        at = np.arange(len(models)) + (place - len(names) / 2) * width
        slow = [np.exp(np.mean([np.log(r["slowdown"]) for r in p])) for p in part]
        axes[0].bar(at, slow, width, label=name)
        share = [
            np.mean([r["seconds"] for r in p]) / whole[m]
            for m, p in zip(models, part, strict=True)
        ]
        axes[1].bar(at, np.maximum(share, 1e-4), width)
    for one in axes:
        one.set_xticks(range(len(models)), models, rotation=30, ha="right", fontsize=7)
    axes[0].set_ylim(0.95, None)
    axes[0].set_ylabel("slowdown to the best, geomean of batch sizes")
    axes[0].legend(fontsize=7)
    axes[1].set_yscale("log")
    axes[1].set_ylabel("time by that of exhaustive search")
    _save(figure, to)


def hardware(table: Table, models: list[str], batches: list[int], to: Path) -> None:
    """Figure 12: a target's own best schedule against the best of the other."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for place, (own, other) in enumerate((("v3", "host"), ("host", "v3"))):
        gains = []
        for batch in batches:
            found = []
            for model in models:
                mine = table.get(f"{model}|{own}|{batch}", {})
                theirs = table.get(f"{model}|{other}|{batch}", {})
                common = {s: t for s, t in theirs.items() if s in mine}
                if common:
                    carried = mine[min(common, key=lambda s: common[s])]
                    found.append(carried / min(mine.values()))
            gains.append(float(np.exp(np.mean(np.log(found)))) if found else 1.0)
        label = {"host": "x86-64-v4", "v3": "x86-64-v3"}
        at = np.arange(len(batches)) + (place - 0.5) * 0.4
        text = f"on {label[own]}, by the best of {label[other]}"
        axes.bar(at, gains, 0.4, label=text)
    axes.set_xticks(range(len(batches)), [str(b) for b in batches])
    axes.set_xlabel("batch size")
    axes.set_ylim(0.9, None)
    axes.set_ylabel("speedup of the target's own schedule, geomean")
    axes.legend(fontsize=8)
    _save(figure, to)


def _matrix(axes: Any, values: np.ndarray, names: list[str], title: str) -> None:
    axes.imshow(np.log(np.nan_to_num(values, nan=1.0)), cmap="YlOrRd", vmin=0)
    for i in range(len(values)):
        for j in range(len(values)):
            text = "–" if np.isnan(values[i, j]) else f"{values[i, j]:.2f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=30, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("best schedule of")
    axes.set_ylabel("used for")
    axes.set_title(title, fontsize=9)


def _save(figure: Any, to: Path) -> None:
    figure.savefig(to, dpi=110)
