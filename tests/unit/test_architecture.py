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


def test_a_module_belongs_to_the_nearest_folder(architecture):
    part_of = architecture["part_of"]
    emitter = "skforge.compiler.codegen.llvm.emitter"
    assert part_of("skforge.compiler.driver", package=False).title == "Pipeline"
    assert part_of("skforge.compiler.forest.rows", package=False).title == "Forest"
    assert part_of(emitter, package=False).title == "Code generation"


def test_arrows_follow_imports_and_skip_what_others_imply(architecture):
    drawn = [(upper.title, lower.title) for upper, lower in architecture["arrows"]()]
    assert ("Passes", "Layouts") in drawn
    # skforge.compiler.passes imports IR, too, but so do layouts
    assert ("Passes", "Intermediate representations") not in drawn


def test_an_import_in_a_function_counts(architecture, tmp_path):
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from skforge.compiler.forest import rows\n")
    known = {"skforge.compiler.forest": file, "skforge.compiler.forest.rows": file}
    assert list(architecture["imported"](file, known)) == [
        "skforge.compiler.forest.rows"
    ]
