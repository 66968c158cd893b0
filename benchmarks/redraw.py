"""Write tables and pictures anew from the numbers that are stored.

    python benchmarks/redraw.py benchmarks/results

after a change of how they look; nothing is measured. results.md, results.svg, weak.md
and latency.svg.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import weak_cells
from plot import heat_map, latencies
from report import to_markdown
from store import read


def redraw(folder: Path, output: Path) -> None:
    """Write into one folder what follows from the JSON of another."""
    found = {name: _json(folder, name) for name in ("results", "weak", "latency")}
    results = read(folder)
    text = to_markdown(results, found["results"]["machine"])
    (output / "results.md").write_text(text, encoding="utf-8")
    text = weak_cells.report(read(folder, "weak"), found["weak"]["machine"])
    (output / "weak.md").write_text(text, encoding="utf-8")
    heat_map(results, output / "results.svg")
    latencies(found["latency"], output / "latency.svg")


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    redraw(Path(sys.argv[1]), Path(sys.argv[1]))
