#!/usr/bin/env python3
"""Write of which tests the fast run has only a part, and the slow run the rest.

.ci/slow.py > .ci/slow.md
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter


def cases(*options: str) -> Counter[str]:
    """Return how many cases of each test a run of all rings has."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    command += ["skforge", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    return Counter(line.partition("[")[0] for line in lines)


fast, every = cases(), cases("-m", "")
slow = every.total() - fast.total()
print("# Slow tests\n")
print(f"The fast run has {fast.total():,} cases; {slow:,} of the tests below are slow.")
print("Written by `.ci/slow.py`.\n")
print("| fast | all | test |\n|--:|--:|---|")
for test, number in sorted(every.items()):
    if fast[test] < number:
        print(f"| {fast[test]} | {number} | `{test}` |")
