"""Random models in every form that memory and files hold them in, beside the library.

``tests/random_models.py`` draws the models and compares; here the outcomes are counted.
``python -m benchmarks.reliability.fuzz_models FIRST LAST`` prints those of some models.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.reliability.processes import ROOT, environment
from benchmarks.reliability.rows import Row

#: Models of one process; a library that crashes loses the rest of them.
CHUNK = 25

#: Number of the model, library, form, and what came of it.
Outcome = tuple[int, str, str, str]


def run(n_models: int, workers: int, first: int = 0) -> list[Row]:
    """Draw models, compare all their forms, and return a row for each library."""
    rows: dict[str, Row] = {}
    tallies: dict[str, Counter[str]] = {}
    models: dict[str, set[int]] = {}
    last = first + n_models
    starts = range(first, last, CHUNK)
    with ThreadPoolExecutor(workers) as pool:
        chunks = pool.map(lambda start: _chunk(start, min(start + CHUNK, last)), starts)
        for seed, library, form, what in (one for chunk in chunks for one in chunk):
            row = rows.setdefault(library, Row("fuzzing", f"forms of {library} models"))
            kind = what.partition(":")[0]
            fine = kind in ("same", "refused", "read by skforge alone")
            row.count(fine, f"model {seed}, {form}: {what}")
            tallies.setdefault(library, Counter())[kind] += 1
            models.setdefault(library, set()).add(seed)
    for library, row in rows.items():
        row.facts = dict(tallies[library])
        row.notes = (
            f"{len(models[library]):,} models; {row.facts.get('same', 0):,} forms have "
            "every bit of what the library answers after it loaded the same, "
            f"{row.facts.get('refused', 0):,} are refused by both, "
            f"{row.facts.get('read by skforge alone', 0):,} by the library alone"
        )
    return list(rows.values())


def _chunk(first: int, last: int) -> list[Outcome]:
    """Try some models in a process of their own."""
    done = subprocess.run(
        (sys.executable, "-m", __name__, str(first), str(last)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    outcomes = [(one[0], one[1], one[2], one[3]) for one in found if len(one) == 4]
    if done.returncode:
        seed = max((one[0] for one in outcomes), default=first)
        what = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        outcomes.append((seed, "all", "this or the next model", what))
    return outcomes


def _print_outcomes(first: int, last: int) -> None:
    from tests.random_models import drawn, outcome

    for seed in range(first, last):
        with tempfile.TemporaryDirectory(prefix="skforge-forms-") as folder:
            model = drawn(seed, Path(folder))
            for number, form in enumerate(model.forms):
                compiled = number == seed % len(model.forms)
                try:
                    what = outcome(form, model.rows, compiled=compiled)
                except Exception as error:  # noqa: BLE001 - whatever it is, a fault
                    what = f"error: {type(error).__name__}: {error}"
                line = [seed, model.library, form.name, what]
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    _print_outcomes(int(sys.argv[1]), int(sys.argv[2]))
