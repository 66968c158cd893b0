"""Random models in all their forms, and random pipelines, beside what they come from.

``tests/random_models.py`` and ``tests/fuzz_pipelines.py`` draw and compare; here the
outcomes are counted. Numbered tries run in processes of their own, so that a crash
loses few of them. ``python -m tests.reliability.fuzz_drawn KIND FIRST LAST``
prints the outcomes of some.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.reliability import processes
from tests.reliability.rows import Row

#: Tries of one process; a library that crashes loses the rest of them.
CHUNK = 25


def outcomes(kind: str, first: int, last: int, workers: int) -> Iterator[list[Any]]:
    """Yield what is printed of a kind: JSON lists, by lines.

    Each begins with the number of a try. A process that ends otherwise yields
    ``[number, None, text]`` of the last one that it printed.
    """

    def run(start: int) -> list[list[Any]]:
        return chunk(kind, start, min(start + CHUNK, last))

    with ThreadPoolExecutor(workers) as pool:
        for lines in pool.map(run, range(first, last, CHUNK)):
            yield from lines


def chunk(kind: str, first: int, last: int) -> list[list[Any]]:
    """Return the outcomes of one process."""
    done = processes.module("fuzz_drawn", kind, str(first), str(last))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    if done.returncode:
        number = lines[-1][0] if lines else first
        what = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        lines.append([number, None, f"this or the next model: {what}"])
    return lines


def models(number: int, workers: int, first: int = 0) -> list[Row]:
    """Draw models, compare all their forms, and return a row for each library."""
    rows: dict[str, Row] = {}
    tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    for seed, name, what in outcomes("models", first, first + number, workers):
        library = name or "all"
        row = rows.setdefault(library, Row("fuzzing", f"forms of {library} models"))
        kind = what.partition(": ")[2].partition(":")[0]
        fine = kind in ("same", "refused", "read by skforge alone")
        row.count(fine, f"model {seed}, {what}")
        tallies[library][kind] += 1
        seeds[library].add(seed)
    for library, row in rows.items():
        row.facts = dict(tallies[library])
        row.notes = (
            f"{len(seeds[library]):,} models; {row.facts.get('same', 0):,} forms have "
            "every bit of what the library answers after it loaded the same, "
            f"{row.facts.get('refused', 0):,} are refused by both, "
            f"{row.facts.get('read by skforge alone', 0):,} by the library alone"
        )
    return list(rows.values())


def pipelines(
    number: int, workers: int, first: int = 0, kind: str = "pipelines"
) -> list[Row]:
    """Draw models, compare their calls, and return a row for each way to draw."""
    rows: dict[str, Row] = {}
    calls: Counter[str] = Counter()
    values: Counter[str] = Counter()
    refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
    lines = outcomes(kind, first, first + number, workers)
    for seed, name, what, *more in lines:
        family = name or "all"
        row = rows.setdefault(family, Row("fuzzing", family))
        row.count(not what, f"model {seed}: {what}")
        if more:
            calls[family] += more[0]
            values[family] += more[1]
            refused[family].update(more[2])
    for family, row in rows.items():
        row.facts = {"refused": dict(refused[family])}
        row.notes = (
            f"{calls[family]:,} calls on {values[family]:,} rows of many forms: "
            "answers bit by bit (or within the documented bound, as asked for), errors "
            f"and warnings by their texts; {refused[family].total():,} models drawn "
            "meanwhile are refused"
        )
    return list(rows.values())


def _of_model(seed: int) -> Iterator[list[Any]]:
    from tests.random_models import drawn, outcome

    with tempfile.TemporaryDirectory(prefix="skforge-forms-") as folder:
        model = drawn(seed, Path(folder))
        for number, form in enumerate(model.forms):
            compiled = number == seed % len(model.forms)
            try:
                what = outcome(form, model.rows, compiled=compiled)
            except Exception as error:  # noqa: BLE001 - whatever it is, a fault
                what = f"error: {type(error).__name__}: {error}"
            yield [seed, model.library, f"{form.name}: {what}"]


def _line(seed: int, name: str, outcome: Any, *more: str) -> list[Any]:
    """Return a try's line; ``more`` is said where calls differ."""
    what = "; ".join(outcome.differs[:3])
    what = what and " ".join([what, outcome.how, *more])
    refused = [one[:160] for one in outcome.refused]
    return [seed, name, what, outcome.calls, outcome.rows, refused]


def _of_pipeline(seed: int) -> Iterator[list[Any]]:
    from tests.fuzz_pipelines import DRAWN, attempt

    name = [*DRAWN][seed % len(DRAWN)]
    outcome = attempt([seed, 1], 20, *DRAWN[name])
    if not outcome.how:
        outcome.differs.append("none of many could be compiled")
    yield _line(seed, name, outcome)


def _of_sparse(seed: int) -> Iterator[list[Any]]:
    from tests.random_sparse import compare

    outcome = compare([seed])
    yield _line(seed, "wide sparse rows", outcome, outcome.example)


def _of_categories(seed: int) -> Iterator[list[Any]]:
    from tests.random_categories import attempt

    yield _line(seed, "categories", attempt(seed))


def _of_roles(seed: int) -> Iterator[list[Any]]:
    from tests.fuzz_pipelines import ROLES, attempt

    yield _line(seed, "roles of columns", attempt([seed, 1], 8, *ROLES))


def _of_parameters(seed: int) -> Iterator[list[Any]]:
    from tests.reliability.parameters import attempt

    library, outcome = attempt(seed)
    yield _line(seed, f"rare parameters of {library}", outcome)


if __name__ == "__main__":
    attempts = {
        "sweep": _of_roles,
        "models": _of_model,
        "pipelines": _of_pipeline,
        "sparse": _of_sparse,
        "categories": _of_categories,
        "parameters": _of_parameters,
    }[sys.argv[1]]
    for seed in range(*map(int, sys.argv[2:])):
        for line in attempts(seed):
            print(json.dumps(line), flush=True)
