"""README's main job, end to end, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.doors

ROOT = Path(__file__).parents[2]

# A module that is None in sys.modules cannot be imported.
WITHOUT_XGBOOST = (
    "import sys; sys.modules['xgboost'] = None;"
    "from skforge.cli.main import app; app(['demo', '--seconds', '0.05'])"
)
#: It also says whether all functions are timed alike: as compiled entries.
WITH_XGBOOST = """
from types import BuiltinFunctionType
from skforge.cli import bench
from skforge.cli.main import app
def watched(console, pairs, *rest, speed=bench.speed, **options):
    kinds = [type(pair.compiled.__func__) for pair in pairs]
    print("entries:", [kind is BuiltinFunctionType for kind in kinds])
    speed(console, pairs, *rest, **options)
bench.speed = watched
app(["demo", "--seconds", "0.05"])
"""


def run_demo(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert "differ" not in run.stdout
    return run.stdout


def test_demo_with_xgboost():
    pytest.importorskip("xgboost")
    out = run_demo(WITH_XGBOOST)
    assert "XGBClassifier: 100 trees" in out
    assert len(re.findall("identical$", out, re.MULTILINE)) == 9
    assert out.count("×") == 6
    assert "entries: [True, True]" in out  # predict_raw and predict_proba
    assert out.index("Time of one call") < out.index("bit by bit")
    assert "Schedules and their loops" not in out  # which --verbose prints


@pytest.mark.slow
def test_demo_without_xgboost_says_what_it_uses_instead():
    out = run_demo(WITHOUT_XGBOOST)
    assert "xgboost is not installed" in out
    assert "RandomForestClassifier: 100 trees" in out
    assert len(re.findall("identical$", out, re.MULTILINE)) == 6
    assert out.count("×") == 3
