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
from machine import in_words, machine
from measure import Limits, Result, measure, results_of
from models import get
from remote import OURS, SYSTEMS, Entry, Remote
from report import at, best_peer, ratios, seconds_of, times
from systems import OWN
from table import different, say
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
    remotes = [Remote(AVX2), *(Remote(e) for e in SYSTEMS if e.name in wanted)]
    facts, results = machine(), []
    sizes = harness.numbers(batches)
    try:
        for name in [n for n in WEAK if harness.chosen(n, names or [])]:
            model = get(name)
            say(f"{name}: {model.facts}")
            others = set(OWN.values()) - {OWN[model.kind], "onnxruntime"}
            if model.facts["leaves"] > MOST_C_LEAVES:
                others.add("tl2cgen")
            able = [r for r in remotes if r.entry.name not in others]
            results.append(measure(model, able, sizes, [1], LIMITS, say))
    finally:
        for remote in remotes:
            remote.close()
    document = harness.rounded({"machine": facts, "models": results})
    print(harness.publish(output, "weak", document, page, "threads"))
    if wrong := different(results):
        raise SystemExit("predictions of skforge differ: " + ", ".join(wrong))


def page(document: harness.Document) -> str:
    results = results_of(document)
    parts = ["# Where other systems come nearest\n", EXPLAINED]
    for ours in (OURS[0], AVX2.name):
        parts += [f"## Times faster than the fastest other system: {ours}\n"]
        parts += [ratios(results, 1, ours), f"## µs a row: {ours}\n"]
        parts += [times(results, 1, ours)]
    parts.append("## Aims\n")
    parts.append("| aim | met | worst cell |\n| --- | --- | --- |")
    parts += [_aim(aim, results) for aim in AIMS]
    parts += [_avx2(results), _one_row(results), _flat(results)]
    return "\n".join([*parts, "", in_words(document["machine"])]) + "\n"


def _line(words: str, found: Sequence[tuple[float, str]], met: int) -> str:
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
    return _line(aim.words, found, sum(ratio >= aim.least for ratio, _ in found))


def _avx2(results: Sequence[Result]) -> str:
    found = []
    for result in results:
        for n in {cell.rows for cell in result.cells}:
            cells = at(result, 1, n)
            wide, narrow = seconds_of(cells, OURS[0]), seconds_of(cells, AVX2.name)
            if wide and narrow:
                times = narrow / wide
                found.append((-times, f"{times:.3g}× {result.model}, {n:,} rows"))
    met = sum(-times <= AVX2_FACTOR for times, _ in found)
    return _line(f"AVX2: at most {AVX2_FACTOR:g}× the time with AVX-512", found, met)


def _one_row(results: Sequence[Result]) -> str:
    found = []
    for result in results:
        us = (seconds_of(at(result, 1, 1), OURS[0]) or 0.0) * 1e6
        if us and result.model in ONE_ROW_MODELS:
            found.append((-us, f"{us:.3g} µs {result.model}"))
    met = sum(-us <= ONE_ROW for us, _ in found)
    return _line(f"one row: at most {ONE_ROW} µs", found, met)


def _flat(results: Sequence[Result]) -> str:
    """Compare 4,096 rows with 512, of boosted trees."""
    found = []
    for result in results:
        few, many = (seconds_of(at(result, 1, n), OURS[0]) for n in (512, 4096))
        if few and many and result.model.startswith("depth"):
            times = many / few / 8
            found.append((-times, f"{times:.3g}× {result.model}"))
    met = sum(-times <= 1.0 for times, _ in found)
    return _line("4,096 rows: no more time a row than with 512", found, met)


if __name__ == "__main__":
    typer.run(main)
