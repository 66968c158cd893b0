"""What a changed file of tuning records must still give: every line that is whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from random import Random

from skforge.compiler.target import Target
from skforge.exceptions import TuningWarning
from skforge.tuning import Tuner, TuningRecords
from skforge.tuning.records import Record
from tests.reliability.seeds import searched_forest

#: One file in so many is used by a search as well.
SEARCHED = 20


def check_records(path: Path, good: bytes, random: Random) -> tuple[str, str]:
    """Return what became of a file of which one line was changed."""
    before = [Record.from_line(line) for line in good.decode().splitlines()]
    texts, lines = good.split(b"\n"), path.read_bytes().split(b"\n")
    changed = [i for i, line in enumerate(lines) if line != texts[i]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = list(TuningRecords(path))
    kept = [one for i, one in enumerate(before) if i not in changed]
    skipped = len(found) == len(kept) and bool(changed)
    if skipped:
        if found != kept:
            return "lost", "wrong: a line that nobody changed is not as it was"
        at = changed[0] + 1
        if lines[at - 1].strip():
            told = [w for w in said if issubclass(w.category, TuningWarning)]
            text = str(told[0].message) if len(told) == 1 else ""
            if str(path) not in text or f"line {at} " not in text:
                return "lost", "wrong: no one warning that names file and line"
    else:
        others = [one for i, one in enumerate(found) if i not in changed]
        if len(found) != len(before) or others != kept:
            return "lost", "wrong: a line that nobody changed is lost"
        for i in changed:
            if Record.from_line(found[i].to_line()) != found[i]:
                return "lost", "wrong: a record that is another once it is written"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in before:
            assert one is not None
            if one in kept and TuningRecords(path).find(one.key) is None:
                return "lost", "wrong: a record is not found"
        if not random.randrange(SEARCHED):
            forest = searched_forest()
            tuner = Tuner("random", records=path, budget=0.001)
            key = before[0].key if before[0] else None
            assert key is not None
            result = tuner.tune(forest, target=Target.x86_64("v3"), n_jobs=1)
            for schedule in result.table.values():
                schedule.loop_nest(forest)
            return ("refused" if skipped else "read"), "searched"
    return ("refused", "left out") if skipped else ("read", "taken")
