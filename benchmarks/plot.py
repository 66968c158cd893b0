"""The summary as a picture: the best peer's time by skforge's, a line a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from measure import Result
from report import at, best_peer


def plot(results: Sequence[Result], file: Path) -> None:
    """Draw the ratio to the best peer for each model and batch size.

    Parameters
    ----------
    results : sequence of Result
        What to draw; a panel for each number of threads.
    file : Path
        Where; its ending says in which format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    counts = sorted({c.threads for r in results for c in r.cells})
    sizes = sorted({c.rows for r in results for c in r.cells})
    height = 1.6 + 0.24 * len(results)
    figure, panels = plt.subplots(
        1,
        len(counts),
        figsize=(6 * len(counts) + 2, height),
        sharey=True,
        squeeze=False,
    )
    colors = plt.get_cmap("viridis")
    for panel, threads in zip(panels[0], counts, strict=True):
        for number, size in enumerate(sizes):
            points = []
            for line, result in enumerate(results):
                best = best_peer(at(result, threads, size))
                if best is not None and best.ratio is not None:
                    points.append((best.ratio, line))
            color = colors(number / max(1, len(sizes) - 1))
            x, y = zip(*points, strict=True) if points else ((), ())
            panel.scatter(x, y, s=22, color=color, label=f"{size:,} rows")
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xlabel("time of the best peer / time of skforge")
        panel.set_title(f"{threads} thread{'s' if threads > 1 else ''}")
        panel.grid(axis="both", alpha=0.3)
    panels[0][0].set_yticks(range(len(results)), [r.model for r in results])
    panels[0][0].set_ylim(len(results) - 0.5, -0.5)
    panels[0][-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)
