"""Tests of ``unit/test_frontend_lightgbm_files.py`` that compile or start processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.test_frontend_lightgbm_files import DATA


def test_files_load_without_lightgbm():
    code = (
        "import sys; sys.modules['lightgbm'] = None\n"
        "from skforge.compiler.frontends import load_forest\n"
        "print([load_forest(p).n_trees for p in sys.argv[1:]])"
    )
    names = ["4.7.0-dart.txt", "4.7.0-multiclass.txt"]
    output = subprocess.check_output(
        [sys.executable, "-c", code, *(str(DATA / n) for n in names)],
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert output == "[4, 12]\n"
