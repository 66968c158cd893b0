"""Bars of what an ablation found; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ablation_lines import Line


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw one panel for each schedule: what each change costs, on a log scale."""
    from matplotlib import pyplot

    timed = [line for line in lines if line.cost is not None]
    panels = [
        (name, [line for line in group if line.kind != "whole"])
        for name, group in groupby(timed, lambda x: f"{x.model}, {x.rows:,}, {x.base}")
    ]
    heights = [1 + 0.25 * len(group) for _, group in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(9, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for ax, (name, group) in zip(axes[:, 0], panels, strict=True):
        places = range(len(group))
        # From 1, where nothing is lost or won.
        ax.barh(places, [(line.cost or 1) - 1 for line in group], left=1)
        ax.set_yticks(places, [line.change for line in group], fontsize=7)
        ax.invert_yaxis()
        ax.set_xscale("log")
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_title(name, fontsize=9)
    axes[-1, 0].set_xlabel("time by that of the whole schedule")
    figure.savefig(path)
