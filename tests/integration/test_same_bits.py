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


def test_every_script_has_a_stored_cell_and_skforge_differs_nowhere():
    stored = same_bits.harness.stored(STORED, "same_bits")
    found = same_bits.harness.records(same_bits.Cell, stored["cells"])
    assert {f"{cell.trait}__{cell.converter}" for cell in found} == {*cells()}
    ours = [cell for cell in found if cell.converter == "skforge"]
    assert sum(cell.differ for cell in ours) == 0
    assert not any(cell.cannot for cell in ours)
    page = same_bits.page(stored)
    assert page == (STORED / "same_bits.md").read_text(encoding="utf-8")
