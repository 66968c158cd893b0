"""The libraries' own tests, with and without ``skforge run``.

    python -m benchmarks.own_tests --output benchmarks/results
    python -m benchmarks.own_tests --tests LightGBM/tests/python_package_test

Each file of tests runs twice, as it is installed: under ``python -m pytest`` and under
``skforge run -m pytest``, with models compiled in their first call; see
``own_tests_plugin.py``. Every test has to end as it does without, or the script ends
with 1. ``own_tests_shipped.py`` has what XGBoost installs; no package brings the test
files of XGBoost and LightGBM: give the folders of a clone, of the installed release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from harness import Document, chosen, paragraphs, parts, publish, stored, table
from machine import in_words, machine

ROOT = Path(__file__).parents[1]
#: By name, what pytest is given.
SUITES = {
    **{
        f"scikit-learn, {module.rpartition('.')[2]}": ["--pyargs", f"sklearn.{module}"]
        for module in (
            *("ensemble.tests.test_forest", "ensemble.tests.test_iforest"),
            *("ensemble.tests.test_weight_boosting", "ensemble.tests.test_stacking"),
            *("ensemble.tests.test_voting", "ensemble.tests.test_gradient_boosting"),
            "ensemble.tests.test_common",
            "tests.test_pipeline",
            "inspection.tests.test_partial_dependence",
            "inspection.tests.test_permutation_importance",
            "tests.test_calibration",
        )
    },
    "scikit-learn, histogram boosting": [
        "--pyargs",
        "sklearn.ensemble._hist_gradient_boosting.tests.test_gradient_boosting",
    ],
    "XGBoost, functions of xgboost.testing": [
        str(ROOT / "benchmarks/own_tests_shipped.py::test_of_xgboost")
    ],
    "XGBoost, LightGBM, CatBoost: scikit-learn's checks": [
        str(ROOT / "benchmarks/own_tests_shipped.py::test_of_estimators")
    ],
}
#: They count how often scikit-learn calls a function of its own.
COUNTING = "not test_iforest_chunks_works"
PLUGINS = (
    *("-k", COUNTING, "-p", "benchmarks.own_tests_plugin", "-p", "no:cacheprovider"),
)


def fetched(folders: list[Path]) -> dict[str, list[str]]:
    """Return a suite for each file of tests; its name begins with the library's."""
    files = [file for one in folders for file in sorted(one.rglob("test_*.py"))]
    return {f"{_library(file)}, {file.stem}": [str(file.resolve())] for file in files}


def _library(file: Path) -> str:
    """Return the library that a file of tests imports."""
    text = file.read_text(encoding="utf-8")
    names = {"import lightgbm": "LightGBM", "import xgboost": "XGBoost"}
    return next((names[line] for line in names if line in text), file.parent.name)


def started(suite: list[str], accelerated: bool, folder: Path) -> Any:
    """Start a file of tests; ``ended`` waits for it."""
    ours = ["-m", "skforge", "run"] if accelerated else []
    pytest = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OWN_TESTS": str(folder / f"{accelerated}.json"),
        "SKFORGE_CACHE_DIR": str(folder / "cache"),
        # threads that wait for each other take minutes on a busy machine
        **{"OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "1"},
    }
    with (folder / f"{accelerated}.log").open("wb") as told:
        return subprocess.Popen(
            [sys.executable, *ours, *pytest, *PLUGINS, *suite],
            cwd=folder,
            env=environment,
            stdout=told,
            stderr=told,
        )


def ended(process: Any, accelerated: bool, folder: Path) -> Document:
    """Return the outcomes of tests and the report of calls."""
    if process.wait() not in (0, 1):  # 1: tests fail
        raise SystemExit((folder / f"{accelerated}.log").read_text()[-3000:])
    document: Document = json.loads((folder / f"{accelerated}.json").read_text())
    return document


def compared(name: str, suite: list[str]) -> Document:
    """Run a suite on both sides; return what is counted, and the tests that differ."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sides = {side: started(suite, side, folder) for side in (False, True)}
        usual, ours = (ended(sides[side], side, folder) for side in (False, True))
        told = (folder / "True.log").read_text()
    before, after = usual["outcomes"], ours["outcomes"]
    differing = {
        test: [before.get(test), after.get(test)]
        for test in {**before, **after}
        if before.get(test) != after.get(test)
    }
    if differing:
        print(told[-20000:])
    counts = ("kernel_calls", "kernel_rows", "library_calls", "differed")
    whys: Counter[str] = Counter()
    for line in ours["report"]:
        whys.update(line["reasons"])
    line = {
        "name": name,
        "outcomes": dict(Counter(before.values())),
        "differing": differing,
        **{key: sum(line[key] for line in ours["report"]) for key in counts},
        "reasons": dict(whys.most_common()),
    }
    print(line, flush=True)
    return line


def tests_table(document: Document) -> list[str]:
    """Return the table of tests."""
    rows = []
    for line in document["lines"]:
        outcomes = line["outcomes"]
        passed, total = outcomes.get("passed", 0), sum(outcomes.values())
        calls = line["kernel_calls"], line["kernel_calls"] + line["library_calls"]
        ends = "the same" if not line["differing"] else f"**{len(line['differing'])}**"
        counts = [f"{total:,}", f"{passed:,}", f"{calls[0]:,} of {calls[1]:,}"]
        rows.append([line["name"], *counts, ends])
    heads = ["tests", "number", "passed without", "calls by kernels", "with skforge"]
    return table(heads, rows, kinds="tnnnt")


def page(document: Document) -> str:
    return paragraphs(
        "# The libraries' own tests",
        "As installed, under `python -m pytest` and under `skforge run -m pytest`. "
        "Each call is made three times, so that kernels are compiled, compared and "
        "answer in tests that ask a model once; see `benchmarks/own_tests.py`.",
        tests_table(document),
        in_words(document["machine"]),
    )


def main(
    only: Annotated[str, typer.Option(help="Parts of names of tests.")] = "",
    tests: Annotated[
        list[Path] | None, typer.Option(help="Folders of a library's own tests.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of results.")] = None,
) -> None:
    """Run; print and write what is run now and what is there of other tests."""
    lines = [] if output is None else stored(output, "own_tests").get("lines", [])
    for name, suite in (fetched(tests) if tests else SUITES).items():
        if not chosen(name, parts(only)):
            continue
        known = {**{one["name"]: one for one in lines}, name: compared(name, suite)}
        lines = [known[one] for one in dict.fromkeys([*SUITES, *known]) if one in known]
        document = {"machine": machine(), "lines": lines}
        publish(output, "own_tests", document, page)
    print(*tests_table({"lines": lines}), sep="\n")
    if any(line["differing"] or line["differed"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
