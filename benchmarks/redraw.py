"""Write tables and pictures anew from the numbers that are stored.

    python benchmarks/redraw.py benchmarks/results [NAMES]

after a change of how they look; nothing is measured. A page is a function of its JSON,
the one that the benchmark wrote it with.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from harness import stored
from measure import read
from plot import heat_map, latencies

#: The module of each page; its function ``page`` writes it.
PAGES = {
    "results": "report",
    "avx2": "report",
    "emeraldrapids": "report",
    "same_bits": "benchmarks.same_bits.__main__",
    "weak": "weak_cells",
    "sweep": "sweep",
    "latency": "latency",
    "cold_start": "cold_start",
    "forms": "forms",
    "categories": "categories",
    "sparse_rows": "sparse_rows",
    "service": "service",
    "accelerated": "accelerated",
    "acceleration_costs": "acceleration_costs",
    "programs_compared": "programs_compared",
    "own_tests": "own_tests",
    "pipelines": "pipelines",
    "explain": "explain",
    "export": "export",
    "distributed": "engines_report",
    "gpu": "benchmarks.gpu.plots",
    "defaults": "default_choices",
    "tuning": "tuning",
    "reliability": "reliability",
    "scaling": "scaling",
}

#: Pages of modelled GPU times: they stay as they are, and name the commit they are of.
FROZEN = ("gpu_static", "gpu_tuning", "gpu_random", "gpu_learned")


def redraw(folder: Path, output: Path, *names: str) -> None:
    for name in names or PAGES:
        page = import_module(PAGES[name]).page
        text = page(stored(folder, name))
        (output / f"{name}.md").write_text(text, encoding="utf-8")
        if name == "results":
            heat_map(read(folder), output / "results.svg")
        if name == "latency":
            latencies(stored(folder, name), output / "latency.svg")


if __name__ == "__main__":
    redraw(Path(sys.argv[1]), Path(sys.argv[1]), *sys.argv[2:])
