"""Figures 2, 5, 11 and 12 of SilvanForge, from times of all schedules of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plot import bars, canvas, heat, save, tilt

Array = NDArray[Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """All schedules of a space for one forest on one machine.

    ``seconds`` has a row for each schedule, NaN where it is not legal, and a column for
    each batch size.
    """

    model: str
    machine: str
    seconds: Array

    @property
    def legal(self) -> int:
        return int((~np.isnan(self.seconds[:, 0])).sum())

    @property
    def best(self) -> Array:
        least: Array = np.nanmin(self.seconds, axis=0)
        return least


def wholes_of(times: Mapping[tuple[str, str], Sequence[dict[str, float]]]) -> list[Any]:
    """Return the times of schedules by model, machine and batch size as arrays."""
    schedules = dict.fromkeys(s for some in times.values() for one in some for s in one)
    return [
        Whole(*key, np.array([[one.get(s, np.nan) for one in some] for s in schedules]))
        for key, some in times.items()
    ]


def slowdowns(times: Sequence[Array]) -> Array:
    """Return what the best schedule of column ``j`` loses where row ``i`` is run.

    NaN where it is not legal there.
    """
    best = [int(np.nanargmin(one)) for one in times]
    return np.array([[one[j] / np.nanmin(one) for j in best] for one in times])


def carried(first: Array, other: Array) -> float:
    """Return how much slower than its own best a machine runs the first one's best.

    Where that is not legal, the first one's next best that is.
    """
    for schedule in np.argsort(first):  # NaN last
        if not np.isnan(other[schedule]):
            return float(other[schedule] / np.nanmin(other))
    return float("nan")


def machines_of(wholes: Sequence[Whole]) -> list[str]:
    return list(dict.fromkeys(w.machine for w in wholes))


def distribution(wholes: Sequence[Whole], batches: Sequence[int]) -> Any:
    """Figure 5: times of all schedules by the fastest, for each forest and machine."""
    machines = machines_of(wholes)
    size = (4.2 * len(machines), 3.8)
    figure, axes = canvas(size, 1, len(machines), sharey=True, squeeze=False)
    for ax, machine in zip(axes.flat, machines, strict=True):
        for whole in wholes:
            if whole.machine != machine:
                continue
            ratio = (whole.seconds / whole.best).ravel()
            ratio = np.sort(ratio[~np.isnan(ratio)])
            share = np.arange(1, len(ratio) + 1) / len(ratio)
            ax.plot(ratio, share, label=whole.model)
        ax.set(xscale="log", xlim=(1, 100), title=machine)
        ax.set_xticks([1, 2, 5, 10, 50], [1, 2, 5, 10, 50])
        ax.grid(alpha=0.3)
        ax.set_xlabel("time by the fastest schedule's")
    axes.flat[0].set_ylabel("share of legal schedules")
    axes.flat[0].legend(fontsize=7)
    figure.suptitle(f"All schedules, batches of {batches[0]:,} to {batches[-1]:,}")
    return figure


def sensitivity(wholes: Sequence[Whole], batches: Sequence[int]) -> Any:
    """Figure 2: the best of a batch size, or forest, at another; on one machine."""
    machine = wholes[0].machine
    on_machine = [w for w in wholes if w.machine == machine]
    by_batch = [slowdowns(list(w.seconds.T)) for w in on_machine]
    middle = 3 * len(batches) // 5
    by_model = slowdowns([w.seconds[:, middle] for w in on_machine])
    sizes, models = [f"{n:,}" for n in batches], [w.model for w in on_machine]
    mean = np.exp(np.nanmean(np.log(by_batch), axis=0))
    figure, axes = canvas((15, 4.4), 1, 3)
    for ax, values, names, title in (
        (axes[0], by_batch[0], sizes, f"{on_machine[0].model}, batch sizes"),
        (axes[1], mean, sizes, "batch sizes, geomean of forests"),
        (axes[2], by_model, models, f"forests, {batches[middle]:,} rows"),
    ):
        heat(
            ax,
            np.log(values),
            names,
            names,
            lambda x: "not\nlegal" if np.isnan(x) else f"{np.exp(x):.2f}",
            lambda x: "white" if np.exp(x) > 2.5 else "black",
            cmap="Reds",
            vmin=0,
            vmax=np.log(5),
        )
        tilt(ax, names)
        ax.set_title(title, fontsize=9)
    figure.suptitle(f"{machine}: slowdown of the best of the column at the row")
    return figure


def strategies(rows: Rows, to: Path, title: str = "") -> None:
    """Figure 11: slowdown to the best, and the share of an exhaustive search."""
    searched = [r for r in rows if r["strategy"] == "exhaustive"]
    whole = {(r["model"], r["machine"]): r["seconds"] for r in searched}
    machines = list(dict.fromkeys(r["machine"] for r in rows))
    size = (4.2 * len(machines), 5.4)
    figure, axes = canvas(size, 2, len(machines), sharey="row", squeeze=False)
    for column, machine in enumerate(machines):
        on_machine = [r for r in rows if r["machine"] == machine]
        models = list(dict.fromkeys(r["model"] for r in on_machine))
        losses: dict[tuple[str, str], list[float]] = {}
        shares: dict[tuple[str, str], list[float]] = {}
        for r in on_machine:
            key = r["model"], r["strategy"]
            losses.setdefault(key, []).append(max(1.0, r["slowdown"]))
            shares.setdefault(key, []).append(r["seconds"] / whole[key[0], machine])
        for ax, values, mean in (
            (axes[0, column], losses, geometric_mean),
            (axes[1, column], shares, lambda some: max(1e-4, np.mean(some))),
        ):
            names = dict.fromkeys(name for _, name in values)
            series = {n: [mean(values[m, n]) for m in models] for n in names}
            bars(ax, models, series)
        axes[0, column].axhline(1.05, color="black", lw=0.7, ls="--")
        axes[0, column].set_title(machine)
        axes[0, column].set_xticks([])
    axes[0, 0].set_ylim(0.9)
    axes[0, 0].set_ylabel("slowdown to the best")
    axes[1, 0].set_yscale("log")
    axes[1, 0].set_ylabel("time by that of exhaustive search")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.suptitle(title)
    columns = 6 if len(machines) > 1 else 3
    figure.legend(*handles, fontsize=7, ncols=columns, loc="outside lower center")
    save(figure, to, dpi=120)


def hardware(wholes: Sequence[Whole], batches: Sequence[int]) -> Any:
    """Figure 12: a machine's own best by the first one's best, which is run on it."""
    first, *others = machines_of(wholes)
    known = {(w.model, w.machine): w.seconds for w in wholes}
    series = {}
    for machine in others:
        losses = np.array(
            [
                [carried(a, b) for a, b in zip(known[m, first].T, times.T, strict=True)]
                for (m, on), times in known.items()
                if on == machine and (m, first) in known
            ]
        )
        series[f"{machine}, geomean"] = np.exp(np.log(losses).mean(axis=0))
        series[f"{machine}, worst forest"] = losses.max(axis=0)
    figure, axes = canvas((7, 3.8))
    bars(axes, [f"{n:,}" for n in batches], series)
    axes.set(xlabel="rows of a batch", ylabel=f"speedup by {first}'s best")
    axes.axhline(1, color="black", lw=0.7)
    axes.legend(fontsize=8)
    figure.suptitle("Schedules of its own", fontsize=10)
    return figure


#: Figures of whole spaces, by the ends of their files' names.
FIGURES = {
    "distribution": distribution,
    "sensitivity": sensitivity,
    "hardware": hardware,
}
