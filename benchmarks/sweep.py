"""The sizes of nvForest's own benchmark, on one thread of the CPU.

    python benchmarks/environments.py nvforest
    OMP_NUM_THREADS=1 python benchmarks/sweep.py --output benchmarks/results

``nvforest.benchmark.run`` trains models of 8 to 512 columns, 16 to 1,024 trees and
depths of 2 to 32 on random tables. Answers, rounds and limits are those of table.py,
with short samples.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Annotated

import harness
import typer
from environments import version_in
from machine import in_words
from measure import Limits, results_of
from remote import OURS, SYSTEMS
from report import ratios, times
from systems import OWN
from table import short_run
from training import SWEEP

NVFOREST = "nvforest-cu13"
LIBRARIES = ("xgboost", "lightgbm", "sklearn")

PEERS = ("nvforest", "treelite", "lignum", "onnxruntime", "daal4py")
LIMITS = Limits(rounds=5, slot=0.01, call=0.5, cell=0.25, prepare=30.0)
EXPLAINED = """The models of nvForest's benchmark: its tables, columns, depths and numbers
of trees. XGBoost and LightGBM regress, scikit-learn's random forests classify. A name has
the trees, the columns and the greatest depth; LightGBM keeps its 31 leaves. nvForest runs
on the CPU, tuned for each batch size by its own `optimize`. All use one thread. Its
largest batches, 1,048,576 and 16,777,216 rows, are left out.
"""  # noqa: E501


def main(
    names: harness.Names = None,
    batches: harness.Batches = "1,16,128,1024",
    columns: Annotated[str, typer.Option(help="Columns.")] = "8,128",
    depths: Annotated[str, typer.Option(help="Greatest depths.")] = "2,8,32",
    trees: Annotated[str, typer.Option(help="Trees.")] = "16,128,1024",
    output: harness.Output = None,
) -> None:
    """Measure, print, and write sweep.json and sweep.md where asked."""
    sizes = product(*map(harness.numbers, (trees, columns, depths)))
    named = [f"{SWEEP}{x}-{t}x{c}-{d}" for t, c, d in sizes for x in LIBRARIES]
    wanted = {OURS[0], *OWN.values(), *PEERS}
    entries = [e for e in SYSTEMS if e.name in wanted]
    models = [n for n in named if harness.chosen(n, names or [])]
    rows, version = harness.numbers(batches), version_in("nvforest", NVFOREST)
    packages = {NVFOREST: version}
    short_run("sweep", page, models, entries, rows, LIMITS, output, **packages)


def page(document: harness.Document) -> str:
    results = results_of(document)
    pair = (OURS[0], "nvforest")
    beside = [
        replace(r, cells=[c for c in r.cells if c.system in pair]) for r in results
    ]
    parts = ["# The sizes of nvForest's benchmark", EXPLAINED]
    parts += ["## Times faster than the fastest other system", ratios(results, 1)]
    parts += ["## Times faster than nvForest on the CPU", ratios(beside, 1)]
    parts += ["## Microseconds per row of skforge", times(results, 1)]
    return harness.paragraphs(*parts, in_words(document["machine"]))


if __name__ == "__main__":
    typer.run(main)
