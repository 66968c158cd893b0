"""Random models in every form that memory and files hold them in, beside the library.

``tests/random_models.py`` draws the models and compares; here the outcomes are counted.
``python -m benchmarks.reliability.fuzz_models FIRST LAST`` prints those of some models.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.reliability import chunks
from benchmarks.reliability.rows import Row

MODULE = "benchmarks.reliability.fuzz_models"


def run(n_models: int, workers: int, first: int = 0) -> list[Row]:
    """Draw models, compare all their forms, and return a row for each library."""
    rows: dict[str, Row] = {}
    tallies: dict[str, Counter[str]] = {}
    models: dict[str, set[int]] = {}
    for seed, library, what in chunks.outcomes(
        MODULE, first, first + n_models, workers
    ):
        library = library or "all"
        row = rows.setdefault(library, Row("fuzzing", f"forms of {library} models"))
        kind = what.partition(": ")[2].partition(":")[0]
        fine = kind in ("same", "refused", "read by skforge alone")
        row.count(fine, f"model {seed}, {what}")
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
                line = [seed, model.library, f"{form.name}: {what}"]
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    _print_outcomes(int(sys.argv[1]), int(sys.argv[2]))
