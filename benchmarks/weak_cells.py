"""The shapes and sizes at which other systems come nearest to skforge.

    OMP_NUM_THREADS=1 python benchmarks/weak_cells.py --output benchmarks/results

One thread. Answers, rounds and limits are those of table.py, with short samples;
skforge runs twice, with the vectors of this machine and with AVX2 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import harness
import typer
from machine import in_words
from measure import Limits, Result, results_of
from models import Model
from remote import OURS, SYSTEMS, Entry
from report import at, best_peer, ratios, seconds_of, times
from systems import OWN
from table import short_run
from training import WEAK

SIZES = (1, 8, 64, 512, 4096, 65536)
AVX2 = Entry("skforge AVX2", "systems", "skforge_avx2")
PEERS = ("xgboost", "lightgbm", "sklearn", "treelite", "tl2cgen", "lleaves", "lignum",
         "onnxruntime", "daal4py")  # fmt: skip
LIMITS = Limits(rounds=5, slot=0.01, call=0.5, cell=0.25, prepare=20.0)

#: C code of more leaves takes gcc longer than ``LIMITS.prepare``.
MOST_C_LEAVES = 10_000


@dataclass(frozen=True, slots=True)
class Aim:
    """The least ratio to the best peer of some models, at some sizes."""

    words: str
    parts: tuple[str, ...]  # of the models' names
    sizes: tuple[int, ...]
    least: float
    peers: tuple[str, ...] = PEERS


AIMS = (
    Aim("wide rows: 5× the fastest other system", ("wide",), SIZES[1:], 5.0),
    Aim("few rows of many trees: 8×", ("500-of", "1000-of"), (1, 8), 8.0),
    Aim("64 rows: 10×", ("wide", "-of-", "depth", "extra", "random"), (64,), 10.0),
    Aim("ExtraTrees: 15× scikit-learn", ("extra",), SIZES, 15.0, ("sklearn",)),
    Aim("one tree: no other system is faster", ("one-tree",), SIZES, 1.0),
)
EXPLAINED = """At these shapes other systems come nearest to skforge: wide rows, deep
trees, few rows of many trees, and single trees. All use one thread. A cell of the first
and third table is the time of the fastest other system divided by skforge's time.
"""

#: µs of a call of one row, and the models it is for.
ONE_ROW, ONE_ROW_MODELS = 0.6, ("depth-8",)
#: How much slower AVX2 may be.
AVX2_FACTOR = 2.0


def main(
    names: harness.Names = None,
    batches: harness.Batches = "1,8,64,512,4096,65536",
    peers: Annotated[str, typer.Option(help="Peers.")] = ",".join(PEERS),
    output: harness.Output = None,
) -> None:
    """Measure, print, and write weak.json and weak.md where asked."""
    wanted = {OURS[0], *OWN.values(), *harness.parts(peers)}
    entries = [AVX2, *(e for e in SYSTEMS if e.name in wanted)]
    models = [n for n in WEAK if harness.chosen(n, names or [])]
    sizes = harness.numbers(batches)
    short_run("weak", page, models, entries, sizes, LIMITS, output, _refused)


def _refused(model: Model) -> set[str]:
    return {"tl2cgen"} if model.facts["leaves"] > MOST_C_LEAVES else set()


def page(document: harness.Document) -> str:
    results = results_of(document)
    parts = ["# Where other systems come nearest", EXPLAINED]
    for ours in (OURS[0], AVX2.name):
        parts += [f"## Times faster than the fastest other system: {ours}"]
        parts += [ratios(results, 1, ours), f"## Microseconds per row: {ours}"]
        parts += [times(results, 1, ours)]
    aims = ["| aim | met | worst cell |", "| --- | --- | --- |"]
    aims += [_aim(aim, results) for aim in AIMS]
    aims += [_avx2(results), _one_row(results), _flat(results)]
    return harness.paragraphs(*parts, "## Aims", aims, in_words(document["machine"]))


def _line(words: str, found: Sequence[tuple[float, str]], least: float) -> str:
    met = sum(value >= least for value, _ in found)
    worst = min(found)[1] if found else "not measured"
    return harness.line(words, f"{met} of {len(found)} cells", worst)


def _aim(aim: Aim, results: Sequence[Result]) -> str:
    found = []
    for result in results:
        for n in aim.sizes if any(p in result.model for p in aim.parts) else ():
            cells = at(result, 1, n)
            own = seconds_of(cells, OURS[0])
            best = best_peer(c for c in cells if c.system in aim.peers)
            if own and best and best.seconds:
                ratio = best.seconds / own
                found.append((ratio, f"{ratio:.3g}× {result.model}, {n:,} rows"))
    return _line(aim.words, found, aim.least)


def _avx2(results: Sequence[Result]) -> str:
    found = []
    for result in results:
        for n in {cell.rows for cell in result.cells}:
            cells = at(result, 1, n)
            wide, narrow = seconds_of(cells, OURS[0]), seconds_of(cells, AVX2.name)
            if wide and narrow:
                times = narrow / wide
                found.append((-times, f"{times:.3g}× {result.model}, {n:,} rows"))
    words = f"AVX2: at most {AVX2_FACTOR:g}× the time with AVX-512"
    return _line(words, found, -AVX2_FACTOR)


def _one_row(results: Sequence[Result]) -> str:
    found = []
    for result in results:
        us = (seconds_of(at(result, 1, 1), OURS[0]) or 0.0) * 1e6
        if us and result.model in ONE_ROW_MODELS:
            found.append((-us, f"{us:.3g} µs {result.model}"))
    return _line(f"one row: at most {ONE_ROW} µs", found, -ONE_ROW)


def _flat(results: Sequence[Result]) -> str:
    """Compare 4,096 rows with 512, of boosted trees."""
    found = []
    for result in results:
        few, many = (seconds_of(at(result, 1, n), OURS[0]) for n in (512, 4096))
        if few and many and result.model.startswith("depth"):
            times = many / few / 8
            found.append((-times, f"{times:.3g}× {result.model}"))
    return _line("4,096 rows: no more time a row than with 512", found, -1.0)


if __name__ == "__main__":
    typer.run(main)
