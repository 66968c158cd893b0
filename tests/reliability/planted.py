"""Plant past faults one at a time, and see whether a comparison speaks first.

    python -m tests.reliability planted                # all of them, in minutes
    python -m tests.reliability planted --only NAME,NAME

Each fault is an edit of skforge's code (``planting.py``) with a scenario. Scenarios ask
harmless rows first, so that a form is known when the rows come for which the fault
matters. Three runs tell about a fault:

1. Without the fault, and with comparisons, all answers are right and nothing speaks.
2. With it and ``SKFORGE_CHECK=off``, some answer must be wrong: the fault bites.
3. With it and comparisons, no answer may be wrong. It is *caught* if a comparison
   spoke, and *left* if a wrong answer left.

The exit status is 1 if more than ``MOST_LEFT`` are left, or a run ends otherwise.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

from tests.reliability.planted_trial import FAULTS, EndOfTrialError, Fault, Trial
from tests.reliability.planting import planted
from tests.reliability.rows import Row

CATALOGUE = "rows", "categories", "pipelines", "answers", "files"
for _part in CATALOGUE:
    import_module(f"tests.reliability.planted_{_part}")

#: Wrong answers that may leave before a comparison speaks, of fifty faults.
MOST_LEFT = 1

#: Characters of what was seen that a line shows.
SHOWN = 240

#: Faults that the notes and the changelog name and that cannot be planted here.
LEFT_OUT = {
    "rows and leaves of GPUs": "they need a GPU",
    "ONNX, DART and linear trees on Arm": "they need an Arm machine",
    "LightGBM dumps without objective, or with infinities": "no library reads a dump",
    "expectiles of several alphas": "they need XGBoost 3.3",
    "buckets of float64 rows on AVX2; tiles that change the order of sums": "they are "
    "of kernels, which are compared before their first answer",
}


_SETTINGS = "SKFORGE_CHECK", "SKFORGE_CACHE_DIR"


@contextmanager
def comparing(wanted: bool, cache: Path) -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in _SETTINGS}
    # a cache knows the entries of a file that was saved without the fault
    os.environ["SKFORGE_CACHE_DIR"] = str(cache)
    if not wanted:
        os.environ["SKFORGE_CHECK"] = "off"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def tried(fault: Fault, *, plant: bool, compare: bool) -> Trial:
    with tempfile.TemporaryDirectory(prefix="skforge-planted-") as folder:
        trial = Trial(Path(folder))
        with (
            comparing(compare, trial.folder / "cache"),
            planted(fault.edits) if plant else nullcontext(),
            warnings.catch_warnings(),
            suppress(EndOfTrialError),
        ):
            warnings.simplefilter("ignore")
            fault.scenario(trial)
    return trial


def verdict(fault: Fault, control: bool = True) -> tuple[str, str]:
    """Return "caught", "silent" or "left" of a fault, and what was seen.

    "silent" is a right answer or a refusal without a word. Otherwise: "no bite" if
    the fault changes nothing, and "alarm" if comparisons speak without it.
    """
    if control:
        trial = tried(fault, plant=False, compare=True)
        if trial.wrong or trial.spoke or not trial.equal:
            seen = [*trial.wrong, *trial.spoke, *trial.refused, "nothing was equal"]
            return "alarm", seen[0]
    trial = tried(fault, plant=True, compare=False)
    if not trial.wrong:
        seen = [*trial.spoke, *trial.refused, "all answers are right"]
        return "no bite", seen[0]
    bite = trial.wrong[0]
    trial = tried(fault, plant=True, compare=True)
    if trial.wrong:
        return "left", trial.wrong[0]
    if trial.spoke:
        return "caught", trial.spoke[0]
    return "silent", (trial.refused or [bite])[0]


def said_of(fault: Fault) -> tuple[str, str]:
    """Return the verdict; "broken" if a scenario or the fault's place is."""
    try:
        return verdict(fault)
    except Exception as error:  # noqa: BLE001 - the other faults are still tried
        return "broken", f"{type(error).__name__}: {error}"


def run(names: list[str]) -> Row:
    """Return a row of the table of reliability: faults, and what became of them."""
    row, counts = Row("planted", "past faults, planted one at a time"), Counter[str]()
    for name in names:
        said, seen = said_of(FAULTS[name])
        counts[said] += 1
        row.count(said in ("caught", "silent"), f"{name}: {said}: {seen}")
        print(f"{said:8} {name:40} {FAULTS[name].kind}: {seen[:SHOWN]}", flush=True)
    row.facts = dict(counts)
    return row


def main(words: list[str]) -> int:
    wanted = words[1].split(",") if words[:1] == ["--only"] else [*FAULTS]
    row = run(wanted)
    print(f"\n{row.tried} faults: {row.facts}")
    wrong = row.facts.get("left", 0)
    return int(wrong > MOST_LEFT or len(row.lost) > wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
