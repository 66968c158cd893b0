"""Faults of ``python -m tests.reliability mutants``: which there are, who is asked."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path
from types import ModuleType

import pytest
from typer import BadParameter

from tests.reliability import code_faults, mutants
from tests.reliability.code_faults import CodeFault, Kind, Place, drawn, places
from tests.reliability.mutants import Outcome

TEXT = '''"""Rows of 8 columns: a < b."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    SIZE = 1 + 1

__all__ = ["grid", "rows"]
Index: TypeAlias = "tuple[int, 1]"
Pair = tuple[1, 2]
WORDS = {"few": "less than 3", "many": "more than 3"}
CAUGHT = (KeyError, IndexError)
TABLE = {"é": low, "b": high}


def rows(x: Literal[1, 2], /, *, size: Literal[3] = 4) -> Literal[5]:
    """Return 1 + 1 of them."""
    if x in (low, high) or not cast("int | None", x):
        raise ValueError(f"{x + 1} rows, {'is' if x == 1 else 'are'} 7" + str(x + 7))
    assert x > 0, x + 7
    words = "row" if x == 1 else "rows"
    return (isinstance(x, (int, float)),
            x  # a comment
            < size)


class Grid:
    def __repr__(self):
        return "grid" * (self.n + 1)
'''


def _found(text: str) -> list[tuple[str, str, str]]:
    return [
        (place.kind, fault.old, place.new)
        for place in places(text)
        for fault in [CodeFault("skforge/grid.py", place, text)]
    ]


def test_faults_are_of_what_computes_and_decides() -> None:
    test = 'x in (low, high) or not cast("int | None", x)'
    assert _found(TEXT) == [
        ("table", 'low, "b": high', 'high, "b": low'),
        ("bound", "4", "5"),
        ("bound", "4", "3"),
        ("rule", test, f"(not ({test}))"),
        ("rule", test, '((x in (low, high)) and (not cast("int | None", x)))'),
        ("comparison", "x in (low, high)", "(x not in ((low, high)))"),
        ("rule", 'not cast("int | None", x)', '(cast("int | None", x))'),
        (
            "table",
            "isinstance(x, (int, float)),\n            x  # a comment\n"
            "            < size",
            "x  # a comment\n            < size,\n"
            "            isinstance(x, (int, float))",
        ),
        ("comparison", "x  # a comment\n            < size", "(x <= size)"),
    ]


def test_planted_texts_are_other_programs() -> None:
    for place in places(TEXT):
        planted = CodeFault("skforge/grid.py", place, TEXT).planted
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(TEXT)), place


def test_a_fault_keeps_what_is_around_it() -> None:
    text = "# é\nn = a * b ** (c - d)\n"
    planted = [CodeFault("n.py", place, text).planted for place in places(text)]
    assert planted == [
        "# é\nn = (a + (b ** (c - d)))\n",
        "# é\nn = a * b ** ((c + d))\n",
    ]


def _package(folder: Path) -> dict[str, list[CodeFault]]:
    for name in ("a", "b", "few"):
        for file in ("one", "two", "three"):
            path = folder / "skforge" / name / f"{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("N = 1\n" if name == "few" else TEXT, encoding="utf-8")
    return code_faults.faults_of(folder, "skforge")


def test_the_same_seed_draws_the_same_faults(tmp_path: Path) -> None:
    faults = _package(tmp_path)
    assert len(faults) == 9
    first = drawn(faults, 5, 3)
    assert drawn(faults, 5, 3) == first
    assert any(drawn(faults, 5, seed) != first for seed in range(4, 14))


def test_faults_are_spread_over_files_folders_and_kinds(tmp_path: Path) -> None:
    faults = _package(tmp_path)
    for seed in range(20):
        found = drawn(faults, 4, seed)
        assert len({fault.path for fault in found}) == 4
        assert {"skforge/a", "skforge/b"} <= {fault.folder for fault in found}
        assert len({fault.place.kind for fault in found}) >= 3


def test_no_file_has_two_faults(tmp_path: Path) -> None:
    found = drawn(_package(tmp_path), 900, 0)
    assert len({fault.path for fault in found}) == len(found) == 9


@pytest.mark.parametrize("module", [code_faults, mutants])
def test_examples_in_the_modules(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def _outcome(path: str, kind: Kind, ring: str) -> Outcome:
    return Outcome(CodeFault(path, Place(kind, 1, 0, 1, "2"), "1"), ring, "test")


def test_a_ring_counts_those_before_it() -> None:
    outcomes = [
        _outcome("skforge/cli/run.py", "bound", "core"),
        _outcome("skforge/cli/show.py", "rule", "full"),
        _outcome("skforge/gpu/codegen/ops.py", "bound", ""),
    ]
    assert mutants.summary(outcomes, ["core", "full"]).splitlines() == [
        "                                    faults     core     full     none",
        "bound                                    2        1        1        1",
        "rule                                     1        0        1        0",
        "",
        "skforge/cli                              2        1        2        0",
        "skforge/gpu/codegen                      1        0        0        1",
        "",
        "with machine code                        1        0        0        1",
        "without machine code                     2        1        2        0",
        "all                                      3        1        2        1",
    ]


def test_only_takes_files_in_which_a_fault_was_drawn(monkeypatch, tmp_path):
    _package(tmp_path)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (found,) = mutants.chosen(900, 0, "few/two")
    assert found.path == "skforge/few/two.py"
    with pytest.raises(BadParameter) as error:
        mutants.chosen(900, 0, "few/two,few/four")
    assert str(error.value) == "no fault was drawn in skforge/few/four.py."
