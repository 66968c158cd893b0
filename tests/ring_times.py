"""Writes how long the rings of tests take to the pages that say it.

    .ci/run > log; python -m tests.ring_times log "2 cores of Zen 4"

The numbers are kept in ``ring_times.json``; ``unit/test_ring_times.py`` compares the
pages with them.
"""

from __future__ import annotations

import json
import re
import sys
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.running_text import rewritten

ROOT = Path(__file__).parent.parent
STORED = Path(__file__).with_suffix(".json")
#: What ends each call of pytest in the log: core, full and outside, a browser.
_SUMMARY = re.compile(r"^=+ .*?(\d+) passed.* in ([\d.]+)s", re.MULTILINE)
#: By page, its sentences: a ring's number of tests is ``[tests]``, its time ``[time]``.
SENTENCES = {
    "README.md": [
        "runs those of core, [core tests] in [core time] on [machine]. `.ci/run` "
        "runs the [others tests] others, too, in [others time] more"
    ],
    "CONTRIBUTING.md": [
        "| core | [core tests] tests of single parts",
        "the demo; [core time] on [machine] |",
        "with outside, they are [others tests] and take [others time] |",
    ],
}


def measured(log: str, machine: str) -> dict[str, Any]:
    """Return the numbers of a log; raise ValueError if it is not of a whole run."""
    found = _SUMMARY.findall(log)
    if len(found) not in (2, 3):  # without Chromium, nothing passes in the third
        raise ValueError(
            f"the log has {len(found)} summaries of pytest, and not 2 or 3"
        )
    rings = zip(("core", "others"), found, strict=False)
    numbers = {ring: {"tests": int(n), "seconds": float(s)} for ring, (n, s) in rings}
    return {**numbers, "machine": machine}


def texts_of(numbers: dict[str, Any]) -> dict[str, str]:
    texts = {"machine": numbers["machine"]}
    for ring in ("core", "others"):
        texts[f"{ring} tests"] = f"{round(numbers[ring]['tests'], -2):,}"
        texts[f"{ring} time"] = time_of(numbers[ring]["seconds"])
    return texts


def time_of(seconds: float) -> str:
    """Return a time in words, not shorter than it was."""
    if seconds < 120:
        return f"{ceil(seconds / 5) * 5} seconds"
    return f"{ceil(seconds / 60)} minutes"


def main(log: str, machine: str) -> None:
    numbers = measured(Path(log).read_text(encoding="utf-8"), machine)
    STORED.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    for name, templates in SENTENCES.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        for template in templates:
            page = rewritten(page, template, texts_of(numbers))
        (ROOT / name).write_text(page, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
