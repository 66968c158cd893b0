"""docs/architecture.svg shows the packages there are and how they import each other."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "architecture.py"


@pytest.fixture(scope="module")
def architecture():
    return runpy.run_path(str(SCRIPT))


def test_the_picture_is_that_of_the_code(architecture):
    written = SCRIPT.with_suffix(".svg").read_text(encoding="utf-8")
    assert written == architecture["draw"](), "run python docs/architecture.py"


def test_a_new_package_has_to_be_placed(architecture):
    with pytest.raises(SystemExit) as error:
        architecture["part_of"]("skforge.compiler.linkers", package=True)
    assert str(error.value) == (
        "the package skforge.compiler.linkers is in no part: name it in PARTS of "
        "docs/architecture.py and run that"
    )
