"""Figures 2, 5, 11 and 12 of SilvanForge, from modelled times of Table 5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.tuning_records import BATCHES, Rows, Whole

Array = NDArray[Any]

MODELLED = "modelled, not measured"


def figures(wholes: Sequence[Whole], rows: Rows, folder: Path) -> None:
    """Write the four figures."""
    import matplotlib

    matplotlib.use("Agg")
    distribution(wholes, BATCHES, folder / "gpu-tuning-distribution.png")
    sensitivity(wholes, BATCHES, folder / "gpu-tuning-sensitivity.png")
    heuristic(wholes, rows, BATCHES, folder / "gpu-tuning-heuristic.png")
    hardware(wholes, BATCHES, folder / "gpu-tuning-hardware.png")


def slowdowns(times: Sequence[Array]) -> Array:
    """Return what the best point of column ``j`` loses where row ``i`` is run.

    NaN where it is not legal there.
    """
    best = [int(np.nanargmin(one)) for one in times]
    rows = [[one[j] / np.nanmin(one) for j in best] for one in times]
    return np.array(rows)


def distribution(wholes: Sequence[Whole], batches: Sequence[int], to: Path) -> None:
    """Figure 5: times of all points by the fastest, for each forest and GPU."""
    from matplotlib import pyplot as plt

    chips = list(dict.fromkeys(w.chip for w in wholes))
    figure, axes = plt.subplots(
        1,
        len(chips),
        figsize=(4.2 * len(chips), 3.8),
        layout="constrained",
        sharey=True,
    )
    for ax, chip in zip(np.atleast_1d(axes), chips, strict=True):
        for whole in wholes:
            if whole.chip != chip:
                continue
            ratio = (whole.seconds / whole.best).ravel()
            ratio = np.sort(ratio[~np.isnan(ratio)])
            share = np.arange(1, len(ratio) + 1) / len(ratio)
            ax.plot(ratio, share, label=whole.model)
        ax.set_xscale("log")
        ax.set_xticks([1, 2, 5, 10, 50], [1, 2, 5, 10, 50])
        ax.set_xlim(1, 100)
        ax.grid(alpha=0.3)
        ax.set_title(chip)
        ax.set_xlabel("time by the fastest point's")
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("share of legal points")
    first.legend(fontsize=7)
    sizes = f"{batches[0]:,} to {batches[-1]:,}"
    figure.suptitle(f"Table 5, batches of {sizes}: {MODELLED}")
    figure.savefig(to, dpi=120)
    plt.close(figure)


def sensitivity(wholes: Sequence[Whole], batches: Sequence[int], to: Path) -> None:
    """Figure 2: the best of one batch size, or forest, at another; on the first GPU."""
    from matplotlib import pyplot as plt

    chip = wholes[0].chip
    own = [w for w in wholes if w.chip == chip]
    first, at = own[0], list(batches).index(4096)
    by_batch = slowdowns(list(first.seconds.T))
    by_model = slowdowns([w.seconds[:, at] for w in own])
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    sizes = [f"{n:,}" for n in batches]
    _matrix(axes[0], by_batch, sizes, f"{first.model}, batch sizes")
    _matrix(axes[1], by_model, [w.model for w in own], "forests, 4,096 rows")
    figure.suptitle(
        f"{chip}: slowdown of the best of the column at the row, {MODELLED}"
    )
    figure.savefig(to, dpi=120)
    plt.close(figure)


def _matrix(ax: Any, values: Array, labels: Sequence[str], title: str) -> None:
    ax.imshow(np.log(values), cmap="Reds", vmin=0, vmax=np.log(5))
    places = range(len(labels))
    ax.set_xticks(places, labels, rotation=30, ha="right", fontsize=7)
    ax.set_yticks(places, labels, fontsize=7)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            text = "not\nlegal" if np.isnan(value) else f"{value:.2f}"
            dark = value > 2.5
            ax.text(
                j, i, text, ha="center", va="center", fontsize=7,
                color="white" if dark else "black",
            )  # fmt: skip
    ax.set_title(title, fontsize=9)


def heuristic(
    wholes: Sequence[Whole], rows: Rows, batches: Sequence[int], to: Path
) -> None:
    """Figure 11: the heuristic's slowdown, and its candidates by all legal points."""
    from matplotlib import pyplot as plt

    chips = list(dict.fromkeys(w.chip for w in wholes))
    models = list(dict.fromkeys(w.model for w in wholes))
    figure, axes = plt.subplots(
        2,
        len(chips),
        figsize=(4.2 * len(chips), 5.4),
        layout="constrained",
        sharey="row",
    )
    axes = axes.reshape(2, len(chips))
    width = 0.8 / len(batches)
    for column, chip in enumerate(chips):
        for i, batch in enumerate(batches):
            part = [
                next(
                    r
                    for r in rows
                    if r["strategy"] == "heuristic"
                    and (r["model"], r["chip"], r["batch"]) == (model, chip, batch)
                )
                for model in models
            ]
            x = np.arange(len(models)) + (i - (len(batches) - 1) / 2) * width
            axes[0, column].bar(
                x, [r["slowdown"] for r in part], width, label=f"{batch:,} rows"
            )
            axes[1, column].bar(x, [100 * r["share"] for r in part], width)
        axes[0, column].axhline(1.05, color="black", lw=0.7, ls="--")
        axes[0, column].set_title(chip)
        axes[0, column].set_xticks([])
        axes[1, column].set_xticks(
            range(len(models)), models, rotation=25, ha="right", fontsize=7
        )
    axes[0, 0].set_ylim(0.9)
    axes[0, 0].set_ylabel("slowdown to the best point")
    axes[1, 0].set_ylabel("schedules timed, % of legal")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        fontsize=7,
        ncols=len(batches),
        loc="outside lower center",
    )
    figure.suptitle(f"Algorithm 1 against all of Table 5: {MODELLED}")
    figure.savefig(to, dpi=120)
    plt.close(figure)


def hardware(wholes: Sequence[Whole], batches: Sequence[int], to: Path) -> None:
    """Figure 12: a GPU's own best by the first one's best, which is run on it.

    Where that is not legal, the first one's next best that is.
    """
    from matplotlib import pyplot as plt

    chips = list(dict.fromkeys(w.chip for w in wholes))
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    width = 0.8 / max(1, len(chips) - 1)
    for place, chip in enumerate(chips[1:]):
        means, most = [], []
        for i in range(len(batches)):
            found = [
                carried(first.seconds[:, i], other.seconds[:, i])
                for first in wholes
                for other in wholes
                if (first.chip, other.chip) == (chips[0], chip)
                and first.model == other.model
            ]
            means.append(float(np.exp(np.mean(np.log(found)))))
            most.append(max(found))
        x = np.arange(len(batches)) + place * width
        axes.bar(x, means, width, label=f"{chip}, geomean")
        axes.plot(x, most, "k_", ms=12, label="worst forest" if not place else None)
    axes.set_xticks(
        np.arange(len(batches)) + width * (len(chips) - 2) / 2,
        [f"{n:,}" for n in batches],
    )
    axes.set_xlabel("rows of a batch")
    axes.set_ylabel(f"speedup by {chips[0]}'s best")
    axes.axhline(1, color="black", lw=0.7)
    axes.legend(fontsize=8)
    axes.set_title(f"Schedules of its own: {MODELLED}", fontsize=10)
    figure.savefig(to, dpi=120)
    plt.close(figure)


def carried(first: Array, other: Array) -> float:
    """Return how much slower than its own best a GPU runs the first one's best."""
    for point in np.argsort(first):  # NaN last
        if not np.isnan(other[point]):
            return float(other[point] / np.nanmin(other))
    return float("nan")
