"""Bits on a real device: the tests' forests and schedules, random ones, and models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
from models import ROOT

from benchmarks.gpu.designs import designs
from benchmarks.gpu.first_run_items import Item
from benchmarks.gpu.first_run_setup import Array, Setup, differs, of_schedule
from skforge import compile_forest
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.schedule.schedule import PRESETS, Schedule

#: Random schedules, and those of one item.
DRAWN, EACH = 200, 10

Schedules = Mapping[str, Schedule | None]


def exactness(setup: Setup) -> Iterator[Item]:
    from tests.exactness.forests import MAKERS

    few = 4 if setup.quick else None
    yield Item("pytest -m gpu", partial(_pytest, setup), 60, 40)
    given = dict(islice(schedules().items(), few))
    for name in islice(MAKERS, few):
        work = partial(small_forest, setup, name, given)
        yield Item(f"forest {name}", work, len(given) + 1, 0.05 * len(given))
    for first in range(0, 2 * EACH if setup.quick else DRAWN, EACH):
        work = partial(_drawn, setup, first)
        yield Item(f"random schedules {first}", work, 2 * EACH, 3)
    for name in setup.names:
        yield Item(f"model {name}", partial(_model, setup, name), 30, 10)


def _pytest(setup: Setup) -> dict[str, Any]:
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(file) for file in tests if "mark.gpu" in file.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *files]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    text = done.stdout[-2000:]
    # Where there is a device, all of them skipped is no success.
    bad = done.returncode or (setup.on_device and " passed" not in text)
    return {"text": text, "wrong": [text[-300:]] if bad else []}


@cache
def schedules() -> Schedules:
    """Return the defaults, the schedules of the tests, and the presets."""
    from tests.exactness.gpu_families import FAMILIES

    presets = {f"preset {name}": Schedule.preset(name) for name in PRESETS}
    mapped = {name: one for name, one in presets.items() if one.kind == "gpu"}
    return {"default": None, **FAMILIES, **mapped}


def small_forest(setup: Setup, name: str, given: Schedules) -> dict[str, Any]:
    from tests.exactness.checks import expected
    from tests.exactness.forests import forest

    rows, raw, _ = expected(name)
    return _compared(setup, forest(name), given, rows, raw, (1, 17, len(rows)))


def _model(setup: Setup, name: str) -> dict[str, Any]:
    """Compare a model's defaults and designs with the CPU, for few rows and many."""
    forest, rows = setup.forest(name)
    rows = np.resize(rows, (4096, rows.shape[1]))
    raw = compile_forest(forest, None, "cpu").predict_raw(rows)
    known = islice(designs(forest), 3 if setup.quick else None)
    given: Schedules = {"default": None, **{d.name: d.schedule for d in known}}
    return _compared(setup, forest, given, rows, raw, (1, 100, 1000, len(rows)))


def _compared(
    setup: Setup,
    forest: Forest,
    given: Schedules,
    rows: Array,
    raw: Array,
    sizes: Sequence[int],
) -> dict[str, Any]:
    """Compare scores, and the leaves of defaults, with the right ones."""
    wrong: list[str] = []
    refused: dict[str, str] = {}
    raw = raw.reshape(len(rows), -1)
    for label, schedule in given.items():
        with of_schedule(label, refused):
            module = compile_forest(forest, schedule, setup.target)
            for n in sizes:
                got = module.predict_raw(rows[:n])
                wrong += differs(got, raw[:n], f"{label}, {n} rows")
            if setup.on_device:
                got = setup.clock().get(module.predict_raw(setup.clock().put(rows)))
                wrong += differs(got, raw, f"{label}, rows on the device")
            if schedule is None:
                leaves = forest.source_node[reference_leaves(forest, rows[:64])]
                wrong += differs(module.apply(rows[:64]), leaves, "leaves")
    return {"schedules": len(given), "refused": refused, "wrong": wrong}


def _drawn(setup: Setup, first: int) -> dict[str, Any]:
    """Compare random forests under random schedules, the same ones in each run."""
    import hypothesis
    from hypothesis import strategies as st

    from tests.strategies_forest import edge_rows, random_forest
    from tests.strategies_schedule import legal_gpu_schedules

    wrong: list[str] = []
    refused: dict[str, str] = {}

    @hypothesis.seed(first)
    @hypothesis.settings(
        max_examples=EACH,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def check(data: st.DataObject) -> None:
        made = data.draw(random_forest(max_trees=7, max_depth=4))
        schedule = data.draw(legal_gpu_schedules(n_trees=made.n_trees))
        rows = edge_rows(made, data.draw(st.integers(1, 70)), seed=2)
        with of_schedule(repr(schedule), refused):
            got = compile_forest(made, schedule, setup.target).predict_raw(rows)
            wrong.extend(differs(got, reference_raw(made, rows), repr(schedule)))

    check()
    return {"schedules": EACH, "refused": refused, "wrong": wrong}
