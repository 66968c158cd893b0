"""SKFORGE_DUMP prints levels while a forest is compiled."""

from __future__ import annotations

import pytest

from skforge.compiler.driver import MIR_PASSES, build_hir, lower
from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest

PASSES = ["lower-to-mir", *(step.name for step in MIR_PASSES)]
NAMES = [*PASSES, "mir", "lower-to-lir", "lir"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Compile a forest, and return the first line of every level printed."""
    hir = build_hir(forest("scalar"), Schedule(), "exact")
    lower(hir, Target.x86_64("v3"))
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("-- ")]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("", []),
        ("hir", ["-- hir"]),
        ("mir, lir", ["-- mir", "-- lir"]),
        ("lower-to-mir,,hir", ["-- hir", "-- lower-to-mir"]),
    ],
)
def test_levels_are_printed_as_asked(levels, expected, monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", levels)
    assert printed(capsys) == expected


def test_all_prints_every_level_and_pass(monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", "all")
    names = [line.split()[1] for line in printed(capsys)]
    assert names == ["hir", *NAMES]


def test_an_unknown_level_warns_with_the_known_ones(monkeypatch, capsys):
    monkeypatch.setenv("SKFORGE_DUMP", "llvm")
    with pytest.warns(UserWarning) as caught:
        assert printed(capsys) == []
    assert [str(warning.message) for warning in caught] == [
        "SKFORGE_DUMP asks for 'llvm', which is not a level printed while compiling; "
        f"use all, hir, mir, lir, {', '.join(PASSES)}, lower-to-lir."
    ]
    assert [warning.filename for warning in caught] == [__file__]
