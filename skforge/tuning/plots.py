"""Plot tuning results with matplotlib: distributions, slowdowns, sensitivity."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import InvalidInputError
from skforge.tuning.search.trial import Trial


def distribution(trials: Sequence[Trial], ax: Any = None) -> Any:
    ax = axes_for(ax)
    times = {n: ratios / ratios.min() for n, ratios in _ratios(trials).items()}
    most = max(2.0, *(values.max() for values in times.values()))
    edges = np.geomspace(1.0, most, 25)
    labels = [f"{n_rows:,} rows" for n_rows in times]
    ax.hist(list(times.values()), bins=edges, stacked=True, label=labels)
    ax.set_xscale("log")
    _times_axis(ax.xaxis)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("times slower than the fastest schedule")
    ax.set_ylabel("schedules")
    ax.legend()
    return ax


def slowdown(trials: Sequence[Trial], ax: Any = None) -> Any:
    ax = axes_for(ax)
    for n_rows, ratios in _ratios(trials).items():
        order = np.arange(1, len(ratios) + 1)
        best = np.minimum.accumulate(ratios)
        (line,) = ax.step(order, best, where="post", label=f"{n_rows:,} rows")
        ax.plot(order, ratios, ".", color=line.get_color())
    ax.axhline(1.0, color="grey", linewidth=0.5)
    ax.set_yscale("log")
    _times_axis(ax.yaxis)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("schedules tried; lines are the best so far")
    ax.set_ylabel("time of the default schedule = 1")
    ax.legend()
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
    return draw_matrix([*map(str, sizes)], matrix, "batch size", ax)


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
            "gain, so there is nothing to draw. tuning='random' or 'exhaustive' times "
            "schedules in any case."
        )
    return sizes


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
