"""The scripts that compare converters with libraries, and what is read from them."""

from __future__ import annotations

import doctest
from pathlib import Path

from benchmarks.same_bits import __main__ as same_bits
from benchmarks.same_bits.compose import CELLS, cells

STORED = Path(same_bits.ROOT) / "benchmarks" / "results"


def test_scripts_are_those_of_traits_and_converters():
    texts = {file.stem: file.read_text(encoding="utf-8") for file in CELLS.glob("*.py")}
    assert texts == cells()
    for text in texts.values():
        assert "benchmarks" not in text  # each runs alone


def test_examples_are_true():
    found = doctest.testmod(same_bits)
    assert found.attempted and not found.failed


def test_a_script_is_run_and_its_counts_are_read(tmp_path):
    counts = (
        "3 of 40 rows differ, by 1.2e-02 at most\n"
        "2 by more than rounding; the greatest answer is 9.9e-01"
    )
    scripts = {
        "sums_forest__treelite": f"print('a note')\nprint({counts!r})",
        "sums_forest__tl2cgen": "raise ValueError('no such model')",
        "sums_forest__daal4py": "import os\nos._exit(3)",
        "sums_forest__skforge": "import time\ntime.sleep(60)",
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = [
        same_bits.measured(
            *name.split("__"), 0.3 if "skforge" in name else 60, tmp_path
        )
        for name in scripts
    ]
    differs, refuses, crashes, hangs = found
    assert (differs.differ, differs.more, differs.rows) == (3, 2, 40)
    assert (differs.most, differs.greatest) == (0.012, 0.99)
    assert refuses.cannot == "ValueError: no such model"
    assert crashes.cannot == "ended with status 3"
    assert hangs.cannot == "no answer within 0.3 s"
    document = {
        "facts": {"target": "t", "python": "3", "packages": {}, "load_average": 0.0}
        | {"measured": "now"},
        "environments": {},
        "cells": found,
    }
    text = same_bits.harness.publish(None, "same_bits", document, same_bits.page)
    assert "| treelite | 1 | 0 | 0 | 1 | 0 |" in text
    assert "[3](../same_bits/cells/sums_forest__treelite.py) (2 †) |" in text
    assert "- **tl2cgen**: sums of many trees, random forest, float64: `Val" in text


def test_every_script_has_a_stored_cell_and_skforge_differs_nowhere():
    stored = same_bits.harness.stored(STORED, "same_bits")
    found = same_bits.harness.records(same_bits.Cell, stored["cells"])
    assert {f"{cell.trait}__{cell.converter}" for cell in found} == {*cells()}
    ours = [cell for cell in found if cell.converter == "skforge"]
    assert sum(cell.differ for cell in ours) == 0
    assert not any(cell.cannot for cell in ours)
    page = same_bits.page(stored)
    assert page == (STORED / "same_bits.md").read_text(encoding="utf-8")
