"""The small table of docs/start.md, written anew from a results file.

    python benchmarks/start_page.py results ../docs/start.md

A model of each library, at two batch sizes: the library's own predict, the faster of
its interfaces, and skforge. A test compares the page with results/results.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from measure import Result
from remote import OURS
from report import at
from store import read
from systems import OWN

from skforge.cli.report import duration

BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
#: Models of the table, and what they are.
SHOWN = {
    "airline.json": "XGBoost",
    "lightgbm/NYC_taxi.txt": "LightGBM",
    "RandomForestClassifier-8": "scikit-learn, random forest",
    "HistGradientBoostingClassifier": "scikit-learn, histogram boosting",
    "airline.onnx": "ONNX Runtime",
}
ROWS = (1, 4096)
THREADS = 1


def table(results: Sequence[Result]) -> str:
    """Return the table, of the models and batch sizes that are shown."""
    by_name = {result.model: result for result in results}
    sizes = [f"{n:,} row{'s' if n > 1 else ''}: its own | skforge" for n in ROWS]
    lines = [
        "| a model of | trees, leaves | " + " | ".join(sizes) + " |",
        "|---|---|" + "--:|" * 2 * len(ROWS),
    ]
    for name, what in SHOWN.items():
        result = by_name[name]
        size = f"{result.facts['trees']:,}, {result.facts['leaves']:,}"
        cells = [_cells(result, rows) for rows in ROWS]
        lines.append(f"| {what} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def with_figures(page: str, folder: Path) -> str:
    """Return a page with the table of a folder's results between its two marks."""
    pattern = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    results = read(folder)
    # Of the models shown: others may have been measured since.
    times = sorted(r.measured for r in results if r.model in SHOWN)
    target = document["machine"]["target"]
    text = f"{table(results)}\n{target}; {times[0]} to {times[-1]}.\n"
    return pattern.sub(lambda _: f"{BEGIN}\n{text}{END}", page)


def _cells(result: Result, rows: int) -> str:
    """Return the time of a call of the source's own, and ours with the ratio."""
    cells = [c for c in at(result, THREADS, rows) if c.seconds is not None]
    own = (OWN[result.kind], f"{OWN[result.kind]} wrapper")
    theirs = min((c for c in cells if c.system in own), key=lambda c: c.seconds)
    ours = next(c for c in cells if c.system == OURS[0])
    faster = f"{theirs.ratio:,.0f}" if theirs.ratio >= 10 else f"{theirs.ratio:.1f}"
    return f"{duration(theirs.seconds)} | {duration(ours.seconds)}, **{faster}×**"


def main() -> None:
    """Write the table into the page that is named second."""
    folder, page = map(Path, sys.argv[1:])
    text = with_figures(page.read_text(encoding="utf-8"), folder)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
