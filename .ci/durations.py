#!/usr/bin/env python3
"""Write which tests take the time of a run.

python -m pytest -n auto --dist worksteal --junitxml run.xml
.ci/durations run.xml "2 cores of an AMD EPYC" > .ci/durations.md
"""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import date
from xml.etree import ElementTree

root = ElementTree.parse(sys.argv[1]).getroot()
(suite,) = root.iter("testsuite")
files: dict[str, list[tuple[float, str]]] = defaultdict(list)
for case in root.iter("testcase"):
    files[case.get("classname", "")].append(
        (float(case.get("time", 0)), case.get("name", ""))
    )
every = sorted(
    (took, f"{file}::{name}") for file in files for took, name in files[file]
)
every.reverse()
minutes, seconds = divmod(round(float(suite.get("time", 0))), 60)
work = sum(took for took, _ in every)
print("# Durations of the fast run\n")
print(f"{date.today()}, {sys.argv[2]}: {len(every):,} tests in {minutes}:{seconds:02},")
print(f"{work:,.0f} s of work. Written by `.ci/durations.py`.\n")
print("| s | tests | file |\n|--:|--:|---|")
sums = sorted(((sum(t for t, _ in own), f) for f, own in files.items()), reverse=True)
for total, file in sums[:40]:
    print(f"| {total:.1f} | {len(files[file])} | {file} |")
print("\n| s | test |\n|--:|---|")
for took, name in every[:40]:
    print(f"| {took:.1f} | `{name}` |")
