"""Random pipelines and wrappers, compiled, beside themselves on rows of many forms.

``tests/fuzz_pipelines.py`` draws the models and compares; here the outcomes are
counted. ``python -m benchmarks.reliability.fuzz_pipelines FIRST LAST`` prints those of
some models.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict

from benchmarks.reliability import chunks
from benchmarks.reliability.rows import Row

MODULE = "benchmarks.reliability.fuzz_pipelines"


def run(n_models: int, workers: int, first: int = 0) -> list[Row]:
    """Draw models, compare their calls, and return a row for each way to draw."""
    rows: dict[str, Row] = {}
    calls: Counter[str] = Counter()
    values: Counter[str] = Counter()
    refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for seed, family, what, *more in chunks.outcomes(
        MODULE, first, first + n_models, workers
    ):
        family = family or "all"
        row = rows.setdefault(family, Row("fuzzing", family))
        row.count(not what, f"model {seed}: {what}")
        if more:
            calls[family] += more[0]
            values[family] += more[1]
            refused[family].update(more[2])
    for family, row in rows.items():
        reasons = [*refused[family].items()]
        row.facts = {"refused": dict(reasons)}
        row.notes = (
            f"{calls[family]:,} calls on {values[family]:,} rows of many forms: "
            "answers bit by bit (or within the documented bound, as asked for), errors "
            f"and warnings by their texts; {sum(n for _, n in reasons):,} models drawn "
            "meanwhile are refused"
        )
    return list(rows.values())


def _print_outcomes(first: int, last: int) -> None:
    from tests.fuzz_pipelines import DRAWN, attempt

    names = [*DRAWN]
    for seed in range(first, last):
        name = names[seed % len(names)]
        outcome = attempt([seed, 1], 20, *DRAWN[name])
        what = "; ".join(outcome.differs[:3])
        if what or not outcome.how:
            what = f"{what or 'none of many could be compiled'} {outcome.how}"
        refused = [one[:160] for one in outcome.refused]
        line = [seed, name, what, outcome.calls, outcome.rows, refused]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    _print_outcomes(int(sys.argv[1]), int(sys.argv[2]))
