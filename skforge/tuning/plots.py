"""Plot tuning results with matplotlib: distributions, slowdowns, sensitivity."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError, plural
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.trial import Trial


def distribution(trials: Sequence[Trial], ax: Any = None) -> Any:
    ours, ax = ax is None, axes_for(ax)
    times = {n: ratios / ratios.min() for n, ratios in _ratios(trials).items()}
    most = max(2.0, *(values.max() for values in times.values()))
    how: dict[str, Any] = {"bins": np.geomspace(1.0, most, 25), "histtype": "step"}
    for color, (n_rows, values) in zip(_colors(), times.items(), strict=False):
        label = plural(n_rows, "row")
        ax.hist(values, **how, linewidth=1.8, color=color, label=label)
    ax.set_title("How much slower than the fastest the schedules are")
    ax.set_xscale("log")
    _times_axis(ax.xaxis)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("times slower than the fastest schedule")
    ax.set_ylabel("schedules")
    _legend(ax, ours)
    return ax


def slowdown(trials: Sequence[Trial], ax: Any = None) -> Any:
    ours, ax = ax is None, axes_for(ax)
    for color, (n_rows, ratios) in zip(
        _colors(), _ratios(trials).items(), strict=False
    ):
        order = np.arange(1, len(ratios) + 1)
        best = np.minimum.accumulate(ratios)
        label = plural(n_rows, "row")
        ax.step(order, best, where="post", color=color, label=label)
        ax.plot(order, ratios, ".", color=color)
    ax.axhline(1.0, color="grey", linewidth=0.5)
    ax.set_title("The search, schedule by schedule")
    ax.set_yscale("log")
    _times_axis(ax.yaxis)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("schedules tried; lines are the best so far")
    ax.set_ylabel("time, default schedule = 1")
    _legend(ax, ours)
    return ax


def sensitivity_matrix(trials: Sequence[Trial]) -> tuple[list[int], Array]:
    """Return the sizes, and the slowdown of the best schedule of one at another.

    Row: the size that runs. Column: the size whose best schedule is used. NaN if that
    schedule was not timed.
    """
    sizes = _sizes(trials)
    times: dict[int, dict[Schedule, float]] = {size: {} for size in sizes}
    for trial in trials:
        if trial.usable and trial.schedule is not None:
            times[trial.n_rows][trial.schedule] = trial.relative
    matrix = np.full((len(sizes), len(sizes)), np.nan)
    for column, used in enumerate(times.values()):
        best = min(used, key=used.__getitem__, default=None)
        for row, run in enumerate(times.values()):
            if best in run:
                matrix[row, column] = run[best] / min(run.values())
    return sizes, matrix


def sensitivity(trials: Sequence[Trial], ax: Any = None) -> Any:
    sizes, matrix = sensitivity_matrix(trials)
    if len(sizes) < 2:
        raise InvalidInputError(
            "sensitivity compares batch sizes, and the search timed one; tune for two "
            "or more."
        )
    ax = draw_matrix([f"{size:,}" for size in sizes], matrix, "batch size", ax)
    untimed = "" if np.isfinite(matrix).all() else "\n–: not timed at this batch size"
    ax.set_title(f"The best schedule of a batch size at others{untimed}")
    return ax


def draw_matrix(labels: list[str], matrix: Array, what: str, ax: Any = None) -> Any:
    ax = axes_for(ax)
    most = max(1.5, *matrix[np.isfinite(matrix)], 1.5)
    image = ax.imshow(matrix, cmap="YlOrRd", vmin=1.0, vmax=most)
    ax.figure.colorbar(image, ax=ax, label="times slower than the best")
    places = np.arange(len(labels))
    ax.set_xticks(places, labels, rotation=45, ha="right")
    ax.set_yticks(places, labels)
    ax.set_xlabel(f"best schedule of this {what}")
    ax.set_ylabel(f"run at this {what}")
    for row, column in np.ndindex(matrix.shape):
        value = matrix[row, column]
        text = f"{value:.2f}" if np.isfinite(value) else "–"
        light = value > 1 + 0.7 * (most - 1)
        how = {"ha": "center", "va": "center", "fontsize": 8}
        ax.text(column, row, text, color="white" if light else "black", **how)
    return ax


def _ratios(trials: Sequence[Trial]) -> dict[int, Array]:
    return {
        n: np.array([t.relative for t in trials if t.n_rows == n and t.samples])
        for n in _sizes(trials)
    }


def _sizes(trials: Sequence[Trial]) -> list[int]:
    sizes = sorted({t.n_rows for t in trials if t.samples})
    if not sizes:
        raise InvalidInputError(
            "nothing was timed in this search, because no schedule promised enough "
            "gain, so there is nothing to draw. Fit with tuning='random' or "
            "tuning='exhaustive', which time schedules in any case, or draw what calls "
            "take with plot_latency(X)."
        )
    return sizes


#: Colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")


def _colors() -> Iterator[str]:
    return cycle(_COLORS)


def _legend(ax: Any, ours: bool) -> None:
    """Draw the legend; beside the axes if the figure is ours, which makes room."""
    if ours:
        ax.figure.legend(loc="outside right upper")
    else:
        ax.legend()


def _times_axis(axis: Any) -> None:
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def axes_for(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInputError(
            "drawing needs matplotlib: pip install matplotlib."
        ) from error
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and shell.get_ipython() is not None
    if "matplotlib.pyplot" in sys.modules or in_notebook:
        from matplotlib import pyplot  # which shows what it draws

        return pyplot.subplots(layout="constrained")[1]
    return Figure(layout="constrained").add_subplot()
